#pragma once
// Operators of a decoded token that are small beside its products: ours in every instruction set, and a graph of ggml's. One
// thread; what they read stays in the cache from call to call.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contest.hpp"
#include "frugal/tensor/workspace.hpp"
#include "prepared_graph.hpp"

namespace bench {

/// What is measured, and what a result must be.
struct small_operator {
    std::string name, shape, peer;  ///< peer: the operators of ggml's graph
    std::vector<double> want{};
    std::string format = "f32";
    double tolerance = 1e-4;
    std::size_t size = 0, peer_size = 0;  ///< floats that each side writes; 0: as many as are wanted
    /// What is compared of a side's floats; empty: they themselves.
    std::function<std::vector<float>(const std::vector<float>&)> seen{}, peer_seen{};
    bool one_code = false;  ///< ours is the same code for every instruction set: it stands under `baseline`
};

/// Ours in one instruction set: `call` is given the device, a workspace and where to write.
template <class Isa, class Call>
class our_small_operator {
public:
    our_small_operator(std::size_t size, Call call) : call_(std::move(call)), y_(size) {}
    [[nodiscard]] fg::status run() { return call_(device_, scratch_, y_); }
    [[nodiscard]] std::vector<float> result() const { return y_; }

private:
    Call call_;
    fg::device::cpu<Isa> device_{executor(1)};
    fg::workspace scratch_;
    std::vector<float> y_;
};

/// `ours(device, scratch, y)` for each instruction set; `theirs(graph)` gives what the peer computes, and is called once for each
/// of its calls.
template <class Ours, class Theirs>
fg::status measure_small_operator(contests& all, small_operator what, Ours ours, Theirs theirs) {
    // ggml's graph computes the operator so many times: starting a graph is no part of it.
    constexpr std::size_t peer_calls = 64;
    contest out;
    out.figure = what.name;
    out.op = std::move(what.name);
    out.format = std::move(what.format);
    out.shape = std::move(what.shape);
    const std::size_t size = what.size != 0 ? what.size : what.want.size();
    const std::size_t peer_size = what.peer_size != 0 ? what.peer_size : what.want.size();
    out.want = std::move(what.want);
    const auto enter = [&](std::string name, bool is_ours, auto side, std::size_t calls) {
        out.enter(std::move(name), is_ours, side, what.tolerance, calls);
        if (const auto& seen = is_ours ? what.seen : what.peer_seen)
            out.contenders.back().result = [side, seen] { return seen(side->result()); };
    };
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        if (what.one_code && !out.contenders.empty()) return;
        enter(std::string(what.one_code ? fg::isa::baseline::name : Isa::name), true,
              std::make_shared<our_small_operator<Isa, Ours>>(size, ours), 1);
    });
    if (all.peer() != nullptr) {
        const auto graph = std::make_shared<peer::prepared_graph>(*all.peer(), 32 * peer_calls, 1);
        peer::ggml_tensor* last = nullptr;
        for (std::size_t i = 0; i < peer_calls; ++i) {
            graph->same_inputs_again();
            last = theirs(*graph);
            graph->expand(last);
        }
        FRUGAL_TRY(graph->allocate(last, peer_size));
        enter(what.peer, false, graph, peer_calls);
    }
    return all.hold(std::move(out));
}

inline double number(float value) { return static_cast<double>(value); }

}  // namespace bench
