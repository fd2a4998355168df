#pragma once
/// Errors of the CUDA runtime as errors of this library: CUDA's name for it, and what to do.
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/runtime.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Whether the error ends the process's use of the device: every later call returns it too, and all memory is gone.
[[nodiscard]] inline bool ends_the_context(cudaError_t code) noexcept {
    switch (code) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorHardwareStackError:
        case cudaErrorAssert:
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case cudaErrorExternalDevice: return true;
        default: return false;
    }
}

/// The kind of error that a code of the runtime is.
[[nodiscard]] inline errc kind_of(cudaError_t code) noexcept {
    if (ends_the_context(code)) return errc::device_lost;
    if (code == cudaErrorMemoryAllocation) return errc::out_of_memory;
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorUnsupportedPtxVersion) return errc::unsupported;
    return errc::device_failed;
}

/// What somebody who meets the error can do about it.
[[nodiscard]] inline std::string_view advice_for(cudaError_t code) noexcept {
    if (ends_the_context(code)) return "a kernel or the device failed and all device memory is lost; reopen() the device";
    switch (code) {
        case cudaErrorMemoryAllocation: return "the device's memory is full; evict images or lower the residency budget";
        case cudaErrorInsufficientDriver:
            return "the driver is missing or older than this program's CUDA; install a driver for it (nvidia-smi shows the "
                   "version)";
        case cudaErrorNoDevice:
            return "there is no NVIDIA device that this process may use; see nvidia-smi and CUDA_VISIBLE_DEVICES";
        case cudaErrorInvalidDevice: return "there is no device of this number; see nvidia-smi -L";
        case cudaErrorDevicesUnavailable:
            return "another process holds the device exclusively; end it, or change the compute mode";
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorUnsupportedPtxVersion:
            return "the kernels were compiled for another architecture; add this device's to FRUGAL_CUDA_ARCHITECTURES";
        case cudaErrorLaunchOutOfResources:
        case cudaErrorInvalidConfiguration:
            return "the device cannot start a kernel of this shape; report it with the device's name";
        case cudaErrorSystemDriverMismatch: return "the kernel driver and its library differ in version; restart the machine";
        default: return "the device stays usable";
    }
}

/// "CUDA cannot DOING: cudaErrorName (what to do)".
[[nodiscard]] inline error make_error(std::string_view doing, cudaError_t code) {
    return fail(kind_of(code), "CUDA cannot ", doing, ": ", std::string_view(cudaGetErrorName(code)), " (", advice_for(code),
                ")");
}

/// Success, or the error that a call of the runtime returned.
[[nodiscard]] inline status check(std::string_view doing, cudaError_t code) {
    if (code == cudaSuccess) return {};
    (void)cudaGetLastError();  // it has been taken: the next launch must not report it again
    return make_error(doing, code);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
