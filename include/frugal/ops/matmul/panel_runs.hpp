#pragma once
/// How products are cut into tasks: by panels of 16 weight rows.
#include <cstddef>

#include "frugal/device/cpu/cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::detail {

/// Tasks for products with `panels` panels together. Products that differ in their number of tokens differ in cost, so they are
/// cut into more parts than there are threads.
template <device::cpu_target Device>
[[nodiscard]] std::size_t panel_tasks(const Device& dev, std::size_t panels, bool even) {
    const std::size_t threads = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t most = even || threads == 1 ? threads : threads * 4;
    return panels < most ? panels : most;
}

/// Most tasks that panel_tasks gives.
template <device::cpu_target Device>
[[nodiscard]] std::size_t most_panel_tasks(const Device& dev) {
    return panel_tasks(dev, static_cast<std::size_t>(-1), false);
}

/// One parallel region over the panels of `count` products, of which product i has panels_of(i): each task takes an equal run
/// of consecutive ones and calls f(product, first panel, last panel + 1, task) for every product that the run touches.
template <device::cpu_target Device, class Panels, class F>
void run_panels(Device& dev, std::size_t count, std::size_t panels, std::size_t tasks, const Panels& panels_of, const F& f) {
    dev.run(tasks, [&](std::size_t task) {
        const std::size_t begin = panels * task / tasks, end = panels * (task + 1) / tasks;
        std::size_t before = 0;  // panels of the products already passed
        for (std::size_t i = 0; i < count && before < end; ++i) {
            const std::size_t own = panels_of(i);
            if (before + own > begin) f(i, begin > before ? begin - before : 0, end - before < own ? end - before : own, task);
            before += own;
        }
    });
}

}  // namespace ops::detail

FRUGAL_NAMESPACE_END
