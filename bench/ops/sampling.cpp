// Choice of a token from 151,936 logits. The code is the same for every instruction set: it stands under `baseline`.
#include <algorithm>

#include "bench.hpp"
#include "frugal/ops/sampling/sampling.hpp"

namespace bench {

namespace {

struct choice {
    static constexpr std::size_t vocabulary = 151936;
    choice(float temperature, std::size_t top_k, float top_p) : logits(normal(vocabulary, 1, 3.0f)) {
        auto made = fg::ops::sampler::create({temperature, top_k, top_p, 1});
        if (made) sampler = *made;
    }

    fg::status run() {
        FRUGAL_TRY_ASSIGN(token, sampler.sample(logits));
        return {};
    }

    std::string check() const {
        const auto greatest = std::max_element(logits.begin(), logits.end());
        if (token < 0 || static_cast<std::size_t>(token) >= vocabulary) return "a token outside of the vocabulary";
        if (sampler.options().temperature == 0 && token != greatest - logits.begin()) return "not the greatest logit";
        // A token among the top k has fewer than k above it.
        const auto above =
            std::count_if(logits.begin(), logits.end(), [&](float l) { return l > logits[static_cast<std::size_t>(token)]; });
        if (sampler.options().top_k != 0 && static_cast<std::size_t>(above) >= sampler.options().top_k)
            return "a token outside of the top k";
        return {};
    }

    work cost() const { return {float_bytes(logits.size()), 0}; }

    std::vector<float> logits;
    fg::ops::sampler sampler;
    std::int64_t token = -1;
};

}  // namespace

void register_benchmarks() {
    const std::string_view isa = fg::isa::baseline::name;
    add_case<choice>(name("sampling_greedy", "f32", isa, choice::vocabulary), isa, 0.0f, std::size_t{0}, 1.0f);
    add_case<choice>(name("sampling_top_k", "f32", isa, choice::vocabulary), isa, 0.8f, std::size_t{40}, 1.0f);
    add_case<choice>(name("sampling_top_p", "f32", isa, choice::vocabulary), isa, 0.8f, std::size_t{0}, 0.95f);
}

}  // namespace bench
