#pragma once
/// The CPU as a device target.
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "frugal/core/counters.hpp"
#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cpu/executor.hpp"
#include "frugal/device/cpu/grain.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/device/target.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// CPU target: kernels of one instruction set, tasks on the given executor, counting as the policy says, products with
/// activations in the given form.
/// Isa: an isa::tag; Counters: a counter_policy; Activations: a device::activation_policy.
template <class Isa = frugal::isa::native, class Counters = counters_off, class Activations = device::default_activations>
class FRUGAL_FLAGGED cpu {
    static_assert(frugal::isa::tag<Isa>,
                  "frugal: device::cpu<Isa, Counters, Activations> takes an instruction set first; write isa::native or "
                  "another tag of isa::all");
    static_assert(counter_policy<Counters>,
                  "frugal: device::cpu<Isa, Counters, Activations> takes a way to count second; write counters_off or "
                  "counters_on");
    static_assert(activation_policy<Activations>,
                  "frugal: device::cpu<Isa, Counters, Activations> takes a form of activations third; write "
                  "device::f32_activations, device::q8_activations or device::bf16_activations");

public:
    using isa = Isa;
    using activations = Activations;
    using counters_type = Counters;
    static constexpr std::string_view name = "cpu";

    cpu() = default;
    explicit cpu(executor_ref executor) noexcept : executor_(executor) {}
    cpu(const cpu&) = delete;
    cpu& operator=(const cpu&) = delete;

    [[nodiscard]] Counters& counters() noexcept { return counters_; }
    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
    [[nodiscard]] std::size_t concurrency() const { return executor_.concurrency(); }
    /// Runs `f(task)` for task 0 … n-1 and waits.
    void run(std::size_t n, task_ref f) const { executor_.run(n, f); }

    /// Cuts 0 … n-1 into at most `concurrency()` ranges of at least `grain` items (device::grain), and runs `f(begin, end)` on
    /// each.
    template <class F>
    void run_ranges(std::size_t n, std::size_t grain, F&& f) const {
        if (n == 0) return;
        const std::size_t most = grain == 0 ? n : (n + grain - 1) / grain;
        const std::size_t limit = executor_.concurrency();
        const std::size_t parts = most < limit ? most : (limit == 0 ? 1 : limit);
        run(parts, [&](std::size_t part) { f(n * part / parts, n * (part + 1) / parts); });
    }

private:
    executor_ref executor_;
    [[no_unique_address]] Counters counters_;
};

/// A device whose kernels are this library's CPU kernels.
template <class D>
concept cpu_target = target<D> && isa::tag<typename D::isa> && requires(D& d, std::size_t n, task_ref f) {
    d.run(n, f);
    { d.concurrency() } -> std::convertible_to<std::size_t>;
};

namespace detail {
template <class Device>
struct FRUGAL_FLAGGED activations_of {
    using type = device::default_activations;
};
template <class Device>
    requires requires { typename Device::activations; }
struct activations_of<Device> {
    using type = typename Device::activations;
};
}  // namespace detail

/// The form in which a device's products take activations: its member `activations`, else the default.
template <class Device>
using activations_of = typename detail::activations_of<Device>::type;

static_assert(cpu_target<cpu<>>, "frugal: the default device must model device::cpu_target");

}  // namespace device

FRUGAL_NAMESPACE_END
