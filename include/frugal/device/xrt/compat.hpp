#pragma once
/// The one place that knows which XRT this is: the API of 2022 (2.13, as Debian packages it) or the current one with hardware
/// contexts. Chosen by what the headers offer, not by version numbers. Also turns what XRT throws into errors.
#if !defined(__cpp_exceptions)
#error "frugal: device/xrt needs exceptions, because XRT throws; compile what includes it without -fno-exceptions"
#endif
#if !__has_include(<xrt/xrt_device.h>)
#error "frugal: device/xrt needs the headers of XRT and libuuid; install libxrt-dev and uuid-dev and link frugal::xrt"
#endif

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#if __has_include(<xrt/experimental/xrt_xclbin.h>)
#include <xrt/experimental/xrt_xclbin.h>
#else
#include <experimental/xrt_xclbin.h>
#endif
#if __has_include(<xrt/xrt_hw_context.h>)
#include <xrt/xrt_hw_context.h>
#define FRUGAL_XRT_HAS_CONTEXTS 1
#else
#define FRUGAL_XRT_HAS_CONTEXTS 0
#endif
#if __has_include(<xrt/experimental/xrt_ext.h>)
#include <xrt/experimental/xrt_ext.h>
#define FRUGAL_XRT_HAS_EXTENSIONS 1
#else
#define FRUGAL_XRT_HAS_EXTENSIONS 0
#endif

#include <cerrno>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::detail {

/// The error for the exception that is being handled; `doing` says what was tried.
[[gnu::noinline, gnu::cold]] inline error xrt_error(std::string_view doing) {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return fail(errc::out_of_memory, "XRT cannot ", doing, ": no memory left on the device or the host");
    } catch (const std::system_error& reason) {
        const int number = reason.code().value() < 0 ? -reason.code().value() : reason.code().value();
        const errc code = number == ENOMEM || number == ENOSPC                          ? errc::out_of_memory
                          : number == ENODEV || number == ENXIO || number == ESHUTDOWN ? errc::device_lost
                                                                                        : errc::device_failed;
        return fail(code, "XRT cannot ", doing, ": ", reason.what());
    } catch (const std::exception& reason) {
        return fail(errc::device_failed, "XRT cannot ", doing, ": ", reason.what());
    } catch (...) {
        return fail(errc::device_failed, "XRT cannot ", doing, ": an exception of unknown type");
    }
}

/// `f()`, or the error for what it throws.
template <class F>
auto xrt_guarded(std::string_view doing, F&& f) {
    using value = std::invoke_result_t<F>;
    using outcome = result<value>;
    try {
        if constexpr (std::is_void_v<value>) {
            f();
            return outcome();
        } else {
            return outcome(f());
        }
    } catch (...) {
        return outcome(xrt_error(doing));
    }
}

/// A binary on a device: what kernels and buffers are made from.
struct FRUGAL_FLAGGED xrt_context {
    ::xrt::device device;
    ::xrt::uuid binary;
#if FRUGAL_XRT_HAS_CONTEXTS
    ::xrt::hw_context context;
#endif
};

/// Throws what XRT throws, as all below.
[[nodiscard]] inline xrt_context xrt_load(::xrt::device device, const ::xrt::xclbin& binary) {
#if FRUGAL_XRT_HAS_CONTEXTS
    const ::xrt::uuid id = device.register_xclbin(binary);
    ::xrt::hw_context context(device, id);
    return {std::move(device), id, std::move(context)};
#else
    const ::xrt::uuid id = device.load_xclbin(binary);
    return {std::move(device), id};
#endif
}

[[nodiscard]] inline ::xrt::kernel xrt_kernel(const xrt_context& on, const std::string& name) {
#if FRUGAL_XRT_HAS_CONTEXTS
    return ::xrt::kernel(on.context, name);
#else
    return ::xrt::kernel(on.device, on.binary, name);
#endif
}

/// Devices read instruction streams through the cache; data has no use for it.
enum class xrt_memory { data, instructions };

/// Bytes of a buffer for `bytes` of data: whole pages, because drivers map pages and the library does not round.
[[nodiscard]] constexpr std::size_t xrt_page_bytes(std::size_t bytes) noexcept {
    return (bytes / 4096 + (bytes % 4096 != 0 ? 1 : 0)) * 4096;
}

/// A buffer for one argument of the kernel, `bytes` rounded up to pages.
[[nodiscard]] inline ::xrt::bo xrt_buffer(const xrt_context& on, const ::xrt::kernel& kernel, int argument, std::size_t bytes,
                                          xrt_memory use) {
    const std::size_t size = xrt_page_bytes(bytes);
    const auto group = static_cast<::xrt::memory_group>(kernel.group_id(argument));
    if (use == xrt_memory::instructions) return ::xrt::bo(on.device, size, ::xrt::bo::flags::cacheable, group);
#if FRUGAL_XRT_HAS_CONTEXTS && FRUGAL_XRT_HAS_EXTENSIONS
    return ::xrt::ext::bo(on.context, size);
#else
    return ::xrt::bo(on.device, size, ::xrt::bo::flags::host_only, group);
#endif
}

}  // namespace device::detail

FRUGAL_NAMESPACE_END
