#pragma once
/// The host CPU beside a device that computes products.
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "frugal/device/cpu/cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// What makes such a device a cpu_target: everything but products runs on `Host`. A base class.
template <cpu_target Host>
class FRUGAL_FLAGGED host_side {
public:
    using isa = typename Host::isa;
    using counters_type = std::remove_cvref_t<decltype(std::declval<Host&>().counters())>;

    [[nodiscard]] Host& host() noexcept { return *host_; }
    [[nodiscard]] counters_type& counters() noexcept { return host_->counters(); }
    [[nodiscard]] const counters_type& counters() const noexcept { return std::as_const(*host_).counters(); }
    [[nodiscard]] std::size_t concurrency() const { return host_->concurrency(); }
    void run(std::size_t n, task_ref f) const { host_->run(n, f); }
    template <class F>
    void run_ranges(std::size_t n, std::size_t grain, F&& f) const {
        host_->run_ranges(n, grain, std::forward<F>(f));
    }

protected:
    explicit host_side(std::unique_ptr<Host> host) noexcept : host_(std::move(host)) {}

private:
    std::unique_ptr<Host> host_;
};

}  // namespace device

FRUGAL_NAMESPACE_END
