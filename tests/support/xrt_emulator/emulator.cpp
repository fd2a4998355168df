// The functions that XRT calls on a device, and the control of the emulated one.
//
// XRT reaches a device through objects of its internal classes, which call C functions (xclOpen, xclAllocBO, xclExecBuf, …).
// Those objects come compiled with libxrt-dev, in libxrt_hwemu.a; the functions are defined here, so the linker takes the
// former from the archive and leaves the archive's own emulator out. See CMakeLists.txt.
#include "xrt_emulator/emulator.hpp"

#include <cstring>
#include <memory>

#include "xrt_emulator/device.hpp"

// What XRT declares in no public header, under its names so that the linker finds it.
namespace xrt_core {
class device {
public:
    void register_axlf(const axlf*);  // tells XRT which binary is loaded; in libxrt_coreutil
};
std::shared_ptr<device> get_userpf_device(void* handle, unsigned int id);  // XRT's object for a handle; in libxrt_coreutil
namespace query {
enum class key_type;
}
}  // namespace xrt_core

// The archive's objects ask this class for optional hardware features. A null object has none.
namespace xclhwemhal2 {
class HwEmShim {
public:
    static HwEmShim* handleCheck(void*);
    int deviceQuery(xrt_core::query::key_type);
};
HwEmShim* HwEmShim::handleCheck(void*) { return nullptr; }
int HwEmShim::deviceQuery(xrt_core::query::key_type) { return 0; }
}  // namespace xclhwemhal2

namespace xrt_emulator {
namespace {

template <class F>
auto with_world(F&& f) {
    const std::lock_guard lock(world::get().mutex);
    return f(world::get());
}

void zero_counters(world& all) {
    const std::uint64_t live = all.count.live_bytes;
    all.count = {};
    all.count.live_bytes = all.count.peak_bytes = live;
}

}  // namespace

void register_kernel(kernel_spec spec, kernel_function function) {
    auto kernel = std::make_shared<world::kernel>();
    kernel->offsets = spec.offsets();
    kernel->function = std::move(function);
    kernel->spec = std::move(spec);
    with_world([&](world& all) { all.kernels[kernel->spec.name] = kernel; });
}
void clear_kernels() {
    with_world([](world& all) { all.kernels.clear(); });
}
void inject(const fault& what) {
    with_world([&](world& all) { all.faults.push_back({what}); });
}
void clear_faults() {
    with_world([](world& all) { all.faults.clear(); });
}
void lose_devices() {
    // A device locks the world while it holds its own lock: never the other way round.
    const auto open = with_world([](world& all) { return all.open; });
    for (device* one : open) one->lose();
}
void configure(const settings& wanted) {
    with_world([&](world& all) { all.set = wanted; });
}
tally counters() {
    return with_world([](world& all) { return all.count; });
}
void reset_counters() { with_world(zero_counters); }
std::string last_fault() {
    return with_world([](world& all) { return all.last_fault; });
}
void restart() {
    with_world([](world& all) {
        all.kernels.clear();
        all.faults.clear();
        all.set = {};
        all.last_fault.clear();
        zero_counters(all);
    });
}

}  // namespace xrt_emulator

using xrt_emulator::operation;
using xrt_emulator::world;

namespace {
xrt_emulator::device& on(xclDeviceHandle handle) { return *static_cast<xrt_emulator::device*>(handle); }
}  // namespace

extern "C" {

unsigned int xclProbe() {
    const std::lock_guard lock(world::get().mutex);
    return world::get().set.devices;
}

xclDeviceHandle xclOpen(unsigned int index, const char*, xclVerbosityLevel) {
    if (index >= xclProbe() || world::get().fails(operation::open)) return nullptr;
    auto one = std::make_unique<xrt_emulator::device>();
    one->core = xrt_core::get_userpf_device(one.get(), index);
    world::get().note([](xrt_emulator::tally& count) { ++count.opens; });
    return one.release();
}

void xclClose(xclDeviceHandle handle) {
    world::get().note([](xrt_emulator::tally& count) { ++count.closes; });
    delete static_cast<xrt_emulator::device*>(handle);
}

int xclGetDeviceInfo2(xclDeviceHandle, xclDeviceInfo2* info) {
    *info = xclDeviceInfo2{};
    info->mMagic = 0X586C0C6C;
    std::strcpy(info->mName, "emulated_npu");
    info->mHALMajorVersion = 2;
    info->mHALMinorVersion = 1;
    info->mDataAlignment = 4096;
    info->mDDRBankCount = 1;
    const std::lock_guard lock(world::get().mutex);
    info->mDDRSize = world::get().set.memory_bytes;
    return 0;
}

int xclLoadXclBin(xclDeviceHandle handle, const axlf* image) {
    if (const int code = on(handle).load(image); code != 0) return code;
    try {
        on(handle).core->register_axlf(image);
    } catch (const std::exception&) {
        return -EINVAL;  // metadata that XRT cannot read
    }
    world::get().note([](xrt_emulator::tally& count) { ++count.binaries; });
    return 0;
}

int xclOpenContext(xclDeviceHandle handle, const xuid_t id, unsigned int, bool) { return on(handle).open_context(id); }
int xclCloseContext(xclDeviceHandle, const xuid_t, unsigned int) { return 0; }

xclBufferHandle xclAllocBO(xclDeviceHandle handle, size_t size, int, unsigned int flags) {
    return on(handle).allocate(size, flags, nullptr);
}
xclBufferHandle xclAllocUserPtrBO(xclDeviceHandle handle, void* user, size_t size, unsigned int flags) {
    return on(handle).allocate(size, flags, user);
}
void xclFreeBO(xclDeviceHandle handle, xclBufferHandle buffer) { on(handle).release(buffer); }
int xclSyncBO(xclDeviceHandle handle, xclBufferHandle buffer, xclBOSyncDirection direction, size_t size, size_t offset) {
    return on(handle).sync(buffer, direction, size, offset);
}
int xclCopyBO(xclDeviceHandle handle, xclBufferHandle to, xclBufferHandle from, size_t size, size_t to_offset,
              size_t from_offset) {
    return on(handle).copy(to, from, size, to_offset, from_offset);
}
void* xclMapBO(xclDeviceHandle handle, xclBufferHandle buffer, bool) {
    if (world::get().fails(operation::map)) return nullptr;
    const auto found = on(handle).find(buffer);
    return found ? found->host : nullptr;
}
int xclUnmapBO(xclDeviceHandle, xclBufferHandle, void*) { return 0; }
int xclGetBOProperties(xclDeviceHandle handle, xclBufferHandle buffer, xclBOProperties* properties) {
    const auto found = on(handle).find(buffer);
    if (!found) return -EINVAL;
    *properties = {};
    properties->handle = buffer;
    properties->flags = found->flags;
    properties->size = found->size;
    properties->paddr = found->address;
    return 0;
}
int xclExecBuf(xclDeviceHandle handle, xclBufferHandle command) { return on(handle).submit(command); }
int xclExecWait(xclDeviceHandle handle, int milliseconds) { return on(handle).wait(milliseconds); }

// Not emulated: sharing buffers, registers, raw memory, clocks, peer to peer.
xclBufferExportHandle xclExportBO(xclDeviceHandle, xclBufferHandle) { return XRT_NULL_BO_EXPORT; }
xclBufferHandle xclImportBO(xclDeviceHandle, xclBufferExportHandle, unsigned) { return XRT_NULL_BO; }
int xclRegRead(xclDeviceHandle, uint32_t, uint32_t, uint32_t*) { return -ENOTSUP; }
int xclRegWrite(xclDeviceHandle, uint32_t, uint32_t, uint32_t) { return -ENOTSUP; }
size_t xclRead(xclDeviceHandle, xclAddressSpace, uint64_t, void*, size_t) { return 0; }
size_t xclWrite(xclDeviceHandle, xclAddressSpace, uint64_t, const void*, size_t) { return 0; }
ssize_t xclUnmgdPread(xclDeviceHandle, unsigned, void*, size_t, uint64_t) { return -ENOTSUP; }
ssize_t xclUnmgdPwrite(xclDeviceHandle, unsigned, const void*, size_t, uint64_t) { return -ENOTSUP; }
int xclReClock2(xclDeviceHandle, unsigned short, const unsigned short*) { return -ENOTSUP; }
int xclP2pEnable(xclDeviceHandle, bool, bool) { return -ENOTSUP; }

}  // extern "C"

// These have C++ linkage in XRT.
int xclCloseExportHandle(xclBufferExportHandle) { return 0; }
int xclCmaEnable(xclDeviceHandle, bool, uint64_t) { return -ENOTSUP; }
int xclUpdateSchedulerStat(xclDeviceHandle) { return -ENOTSUP; }
int xclInternalResetDevice(xclDeviceHandle, xclResetKind) { return -ENOTSUP; }
