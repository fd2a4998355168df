#pragma once
/// An open XRT device with one kernel on it, and the weight images that the kernel multiplies with. Not thread-safe.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/xrt/binary.hpp"
#include "frugal/device/xrt/compat.hpp"
#include "frugal/device/xrt/options.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

namespace detail {
class FRUGAL_FLAGGED xrt_session;

/// An instruction stream on the device.
struct FRUGAL_FLAGGED xrt_program {
    ::xrt::bo words;
    std::uint32_t count = 0;
};

/// A matrix as the kernel sees it: whole tiles.
struct FRUGAL_FLAGGED xrt_shape {
    std::size_t rows = 0, columns = 0;
    auto operator<=>(const xrt_shape&) const = default;
};
}  // namespace detail

/// One packed matrix in device memory. It may outlive its device; it multiplies only in the generation that it was packed in.
class FRUGAL_FLAGGED xrt_image {
public:
    /// Bytes of device memory. An image that was moved from has none.
    [[nodiscard]] std::size_t bytes() const noexcept { return held_ ? held_->bytes : 0; }
    /// The device's generation() when it was packed.
    [[nodiscard]] std::uint64_t generation() const noexcept { return held_ ? held_->generation : 0; }
    /// Rows of each part.
    [[nodiscard]] std::span<const std::size_t> rows() const noexcept {
        return held_ ? std::span<const std::size_t>(held_->rows) : std::span<const std::size_t>();
    }
    [[nodiscard]] std::size_t cols() const noexcept { return held_ ? held_->cols : 0; }

private:
    friend class detail::xrt_session;
    struct contents {
        ::xrt::device device;  // first, so that it goes last: a buffer does not keep its device open, and is freed on it
        ::xrt::bo weights;
        detail::xrt_program program;
        detail::xrt_shape shape;
        std::vector<std::size_t> rows;
        std::size_t cols = 0, bytes = 0;
        std::uint64_t generation = 0;
    };
    xrt_image() : held_(std::make_unique<contents>()) {}

    std::unique_ptr<contents> held_;
};

namespace detail {

/// Generations given out in this process.
inline std::atomic<std::uint64_t> xrt_generations{0};

class FRUGAL_FLAGGED xrt_session {
public:
    xrt_session(const xrt_session&) = delete;
    xrt_session& operator=(const xrt_session&) = delete;
    ~xrt_session() = default;

    /// Opens device `index`, loads the options' binary and finds its kernel. `tile` is what the tag must say about tiles.
    /// Errors: invalid_argument, io, malformed_file, unsupported, not_found (the kernel), out_of_memory, device_failed,
    /// device_lost.
    [[nodiscard]] static result<std::unique_ptr<xrt_session>> open(unsigned index, const xrt_options& options,
                                                                   std::string_view tile, std::uint64_t generation) {
        if (options.limit.count() < 1)
            return fail(errc::invalid_argument, "xrt_options::limit is ", std::int64_t{options.limit.count()},
                        " ms; XRT takes 0 for no limit at all");
        if (!options.instructions) return fail(errc::invalid_argument, "xrt_options::instructions is not set");
        std::unique_ptr<xrt_session> out(new xrt_session(options, generation));
        if (options.binary.empty()) {
            FRUGAL_TRY_ASSIGN(const std::vector<char> bytes, read_xrt_binary(options.path));
            FRUGAL_TRY(out->start_up(index, bytes, options.id, tile));
        } else {
            FRUGAL_TRY(out->start_up(index, options.binary, options.id, tile));
        }
        return out;
    }

    /// Makes an image of `bytes` bytes of tiles, which `fill(std::span<std::byte>)` writes. The shape is padded to whole tiles.
    /// Errors: those of fill; unsupported (no instruction stream for this shape), out_of_memory, device_failed, device_lost.
    template <class Fill>
    [[nodiscard]] result<xrt_image> pack(xrt_shape shape, std::vector<std::size_t> rows, std::size_t cols, std::size_t bytes,
                                         Fill&& fill) {
        if ((tag_.rows != 0 && tag_.rows != shape.rows) || (tag_.columns != 0 && tag_.columns != shape.columns))
            return fail(errc::unsupported, "the xclbin was built for weights [", tag_.rows, ", ", tag_.columns,
                        "] (0: any), this matrix has whole tiles [", shape.rows, ", ", shape.columns, "]");
        xrt_image image;
        xrt_image::contents& held = *image.held_;
        held.device = context_.device;
        FRUGAL_TRY_ASSIGN(held.program, program(shape));
        std::byte* memory = nullptr;
        FRUGAL_TRY(xrt_guarded("allocate a weight image", [&] {
            held.weights = xrt_buffer(context_, kernel_, layout_.weights, bytes, xrt_memory::data);
            memory = held.weights.map<std::byte*>();
        }));
        FRUGAL_TRY(fill(std::span<std::byte>(memory, bytes)));
        FRUGAL_TRY(xrt_guarded("upload a weight image", [&] { held.weights.sync(XCL_BO_SYNC_BO_TO_DEVICE, bytes, 0); }));
        // Room for its activations and results now, so that a product does not fail for want of memory.
        FRUGAL_TRY(reserve(tag_.tokens * shape.columns * sizeof(bfloat16), tag_.tokens * shape.rows * sizeof(float)));
        programs_[shape] = held.program;
        held.shape = shape;
        held.rows = std::move(rows);
        held.cols = cols;
        held.bytes = xrt_page_bytes(bytes);
        held.generation = generation_;
        return image;
    }

    /// y[i] = x times part i of the image, in launches of as many tokens as the kernel takes. Shapes have been checked.
    /// Errors: device_failed, device_lost; then y is partly written.
    [[nodiscard]] status multiply(const xrt_image& image, matrix_view<const float> x, std::span<const matrix_view<float>> y) {
        const std::size_t height = tag_.tokens, width = image.held_->shape.columns;
        for (std::size_t first = 0; first < x.rows(); first += height) {
            const std::size_t count = (std::min)(height, x.rows() - first);
            // The kernel reads all rows of its tile: those without a token are zero, not what an earlier launch left there (C59).
            for (std::size_t t = 0; t < count; ++t) {
                const float* from = x.row(first + t);
                bfloat16* to = input_ + t * width;
                for (std::size_t c = 0; c < x.cols(); ++c) to[c] = to_bfloat16(from[c]);
                std::fill(to + x.cols(), to + width, bfloat16{});
            }
            std::fill(input_ + count * width, input_ + height * width, bfloat16{});
            FRUGAL_TRY(launch(image, count));
            for (std::size_t t = 0; t < count; ++t) {
                const float* from = output_memory_ + t * image.held_->shape.rows;
                for (const matrix_view<float>& part : y) {
                    std::copy_n(from, part.cols(), part.row(first + t));
                    from += part.cols();
                }
            }
        }
        return {};
    }

    [[nodiscard]] const xrt_tag& tag() const noexcept { return tag_; }

private:
    xrt_session(const xrt_options& options, std::uint64_t generation)
        : layout_(options.kernel), instructions_(options.instructions), limit_(options.limit), generation_(generation) {}

    [[nodiscard]] status start_up(unsigned index, const std::vector<char>& binary, const std::string& id, std::string_view tile) {
        FRUGAL_TRY_ASSIGN(tag_, read_xrt_tag(binary));
        if (!id.empty() && !same_xrt_id(id, xrt_binary_id(binary)))
            return fail(errc::unsupported, "the xclbin has the id ", xrt_binary_id(binary), ", wanted is ", id);
        if (tag_.tile != tile)
            return fail(errc::unsupported, "the xclbin was built for tiles ", tag_.tile, ", this device packs ", tile);
        ::xrt::xclbin parsed;
        FRUGAL_TRY(xrt_guarded("read the device program", [&] { parsed = ::xrt::xclbin(binary); }));
        FRUGAL_TRY_ASSIGN(const bool found, xrt_guarded("list the kernels", [&] { return find_kernel(parsed); }));
        if (!found)
            return fail(errc::not_found, "the xclbin has no kernel ", layout_.name, "; it has: ", kernel_names_);
        FRUGAL_TRY(check_layout());
        FRUGAL_TRY_ASSIGN(::xrt::device opened, xrt_guarded("open the device", [&] { return ::xrt::device(index); }));
        FRUGAL_TRY(xrt_guarded("load the device program", [&] { context_ = xrt_load(std::move(opened), parsed); }));
        return xrt_guarded("open the kernel", [&] { kernel_ = xrt_kernel(context_, layout_.name); });
    }

    /// Notes the arguments of the kernel: of each whether it is a buffer.
    bool find_kernel(const ::xrt::xclbin& binary) {
        for (const auto& kernel : binary.get_kernels()) {
            kernel_names_ += (kernel_names_.empty() ? "" : ", ") + kernel.get_name();
            if (kernel.get_name() != layout_.name) continue;
            for (const auto& argument : kernel.get_args()) is_buffer_.push_back(!argument.get_mems().empty());
            return true;
        }
        if (kernel_names_.empty()) kernel_names_ = "none";
        return false;
    }

    /// XRT does not check indices: a wrong one is undefined behaviour.
    [[nodiscard]] status check_layout() {
        is_given_.assign(is_buffer_.size(), false);
        const auto expect = [&](std::string_view what, int index, bool buffer) -> status {
            if (index == xrt_kernel_layout::absent) return {};
            const auto at = static_cast<std::size_t>(index);
            if (index < 0 || at >= is_buffer_.size())
                return fail(errc::unsupported, "kernel ", layout_.name, " takes ", is_buffer_.size(),
                            " arguments, the layout names ", what, " as argument ", index);
            if (is_buffer_[at] != buffer || is_given_[at])
                return fail(errc::unsupported, "argument ", index, " of kernel ", layout_.name, " is ",
                            is_given_[at] ? "named twice in the layout" : is_buffer_[at] ? "a buffer" : "a scalar",
                            "; the layout names it ", what);
            is_given_[at] = true;
            return {};
        };
        using named = std::pair<std::string_view, int>;
        for (const auto& [what, index] : {named("instructions", layout_.instructions), named("activations", layout_.activations),
                                          named("weights", layout_.weights), named("output", layout_.output)}) {
            if (index == xrt_kernel_layout::absent)
                return fail(errc::invalid_argument, "the layout of kernel ", layout_.name, " must say which argument is ", what);
            FRUGAL_TRY(expect(what, index, true));
        }
        FRUGAL_TRY(expect("opcode", layout_.opcode, false));
        FRUGAL_TRY(expect("instruction_count", layout_.instruction_count, false));
        FRUGAL_TRY(expect("tokens", layout_.tokens, false));
        FRUGAL_TRY(expect("rows", layout_.rows, false));
        return expect("columns", layout_.columns, false);
    }

    /// The instruction stream for a shape: from an earlier image, or new.
    [[nodiscard]] result<xrt_program> program(xrt_shape shape) {
        if (const auto known = programs_.find(shape); known != programs_.end()) return known->second;
        const std::vector<std::uint32_t> words = instructions_(shape.rows, shape.columns);
        constexpr std::size_t most = (std::numeric_limits<std::uint32_t>::max)();
        if (words.empty() || words.size() > most || shape.rows > most || shape.columns > most)
            return fail(errc::unsupported, "there are no instructions for weights [", shape.rows, ", ", shape.columns,
                        "] in whole tiles");
        xrt_program out;
        out.count = static_cast<std::uint32_t>(words.size());
        const std::size_t bytes = words.size() * sizeof(std::uint32_t);
        FRUGAL_TRY(xrt_guarded("send instructions", [&] {
            out.words = xrt_buffer(context_, kernel_, layout_.instructions, bytes, xrt_memory::instructions);
            std::memcpy(out.words.map<std::byte*>(), words.data(), bytes);
            out.words.sync(XCL_BO_SYNC_BO_TO_DEVICE, bytes, 0);
        }));
        return out;
    }

    /// Activation and output buffers of at least these sizes. What was there is kept if there is no memory for more.
    [[nodiscard]] status reserve(std::size_t input_bytes, std::size_t output_bytes) {
        return xrt_guarded("allocate activation buffers", [&] {
            ::xrt::bo input = activations_, output = output_;
            bfloat16* input_at = input_;
            float* output_at = output_memory_;
            if (!input || input.size() < input_bytes) {
                input = xrt_buffer(context_, kernel_, layout_.activations, input_bytes, xrt_memory::data);
                input_at = input.map<bfloat16*>();
            }
            if (!output || output.size() < output_bytes) {
                output = xrt_buffer(context_, kernel_, layout_.output, output_bytes, xrt_memory::data);
                output_at = output.map<float*>();
            }
            activations_ = std::move(input), output_ = std::move(output);
            input_ = input_at, output_memory_ = output_at;
        });
    }

    /// One launch on the activations in the buffer; the first `count` rows of results come back.
    [[nodiscard]] status launch(const xrt_image& image, std::size_t count) {
        FRUGAL_TRY(xrt_guarded("send activations", [&] {
            activations_.sync(XCL_BO_SYNC_BO_TO_DEVICE, tag_.tokens * image.held_->shape.columns * sizeof(bfloat16), 0);
        }));
        // A run that could not start stays in a state that it never leaves, and one that failed is not worth keeping.
        if (status done = start_and_wait(image); !done) {
            run_ = ::xrt::run();
            return done;
        }
        return xrt_guarded("fetch results", [&] {
            output_.sync(XCL_BO_SYNC_BO_FROM_DEVICE, count * image.held_->shape.rows * sizeof(float), 0);
        });
    }

    [[nodiscard]] status start_and_wait(const xrt_image& image) {
        FRUGAL_TRY(xrt_guarded("start the kernel", [&] {
            if (!run_) run_ = ::xrt::run(kernel_);
            set_arguments(image);
            run_.start();
        }));
        const auto state = xrt_guarded("wait for the kernel", [&] { return run_.wait(limit_); });
        if (state && *state == ERT_CMD_STATE_COMPLETED) return {};
        if (state && *state == ERT_CMD_STATE_NORESPONSE) return fail(errc::device_lost, "the device does not respond any more");
        if (state && *state != ERT_CMD_STATE_TIMEOUT)
            return fail(errc::device_failed, "kernel ", layout_.name, " ended with an error: state ", static_cast<int>(*state));
        // Still running, for all that we know. It must not write into buffers that others use next.
        if (const auto aborted = xrt_guarded("abort the kernel", [&] { return run_.abort(); }); !aborted)
            return fail(errc::device_lost, aborted.error().message, ", which did not end within ", std::int64_t{limit_.count()},
                        " ms");
        if (!state) return state.error();
        return fail(errc::device_failed, "kernel ", layout_.name, " did not end within ", std::int64_t{limit_.count()},
                    " ms and was aborted");
    }

    /// All of them each time: XRT runs a kernel whose argument was never set, with what an earlier command left in the packet.
    void set_arguments(const xrt_image& image) {
        const auto scalar = [&]<class T>(int index, T value) {
            if (index != xrt_kernel_layout::absent) run_.set_arg(index, value);
        };
        scalar(layout_.opcode, layout_.opcode_value);
        scalar(layout_.instruction_count, image.held_->program.count);
        scalar(layout_.tokens, static_cast<std::uint32_t>(tag_.tokens));
        scalar(layout_.rows, static_cast<std::uint32_t>(image.held_->shape.rows));
        scalar(layout_.columns, static_cast<std::uint32_t>(image.held_->shape.columns));
        run_.set_arg(layout_.instructions, image.held_->program.words);
        run_.set_arg(layout_.activations, activations_);
        run_.set_arg(layout_.weights, image.held_->weights);
        run_.set_arg(layout_.output, output_);
        // Arguments that the kernel declares and the layout does not name: valid values that mean nothing.
        for (std::size_t i = 0; i < is_given_.size(); ++i) {
            if (is_given_[i]) continue;
            if (is_buffer_[i])
                run_.set_arg(static_cast<int>(i), activations_);
            else
                run_.set_arg(static_cast<int>(i), std::uint32_t{0});
        }
    }

    xrt_kernel_layout layout_;
    std::function<std::vector<std::uint32_t>(std::size_t, std::size_t)> instructions_;
    std::chrono::milliseconds limit_;
    std::uint64_t generation_;
    xrt_tag tag_;
    std::string kernel_names_;
    std::vector<bool> is_buffer_, is_given_;  // of each argument of the kernel

    xrt_context context_;
    ::xrt::kernel kernel_;
    std::map<xrt_shape, xrt_program> programs_;
    ::xrt::bo activations_, output_;  // of the largest launch so far
    bfloat16* input_ = nullptr;
    float* output_memory_ = nullptr;
    ::xrt::run run_;
};

}  // namespace detail
}  // namespace device

FRUGAL_NAMESPACE_END
