#pragma once
/// Matrices in the emulator's device memory.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <driver_types.h>     // CUDA toolkit: cudaError_t. Plain C++.
#include <simt/emulator.hpp>  // not of this folder where tests run on a GPU
#include "frugal/tensor/view.hpp"

namespace test {

/// Lets a simt::kernel_fault pass, which REQUIRE around the launch would not.
inline void started(cudaError_t error) { REQUIRE(error == cudaSuccess); }

/// Rows of `cols` floats on the emulated device.
class device_matrix {
public:
    device_matrix(const std::vector<float>& from, std::size_t cols) : memory_(from), rows_(from.size() / cols), cols_(cols) {}
    /// Bytes that are NaN.
    device_matrix(std::size_t rows, std::size_t cols) : memory_(rows * cols), rows_(rows), cols_(cols) {}

    operator frugal::matrix_view<float>() { return {memory_.data(), rows_, cols_}; }
    operator frugal::matrix_view<const float>() { return {memory_.data(), rows_, cols_}; }
    [[nodiscard]] frugal::matrix_view<float> rows(std::size_t first, std::size_t count) {
        return frugal::matrix_view<float>(*this).rows_range(first, count);
    }
    [[nodiscard]] float* data() { return memory_.data(); }
    [[nodiscard]] std::vector<float> to_host() const { return memory_.to_host(); }

private:
    simt::device_array<float> memory_;
    std::size_t rows_, cols_;
};

}  // namespace test
