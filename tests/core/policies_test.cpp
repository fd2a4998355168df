#include "frugal/policies.hpp"

#include <doctest/doctest.h>

#include <string_view>
#include <type_traits>

namespace fg = frugal;

namespace {

using avx2 = fg::device::cpu<fg::isa::avx2>;
using two_formats = fg::quant::list<fg::quant::q8_0, fg::quant::f32>;

// A consumer's own bundle and own policy.
struct my_loading {
    static constexpr std::string_view name = "my_loading";
    static constexpr bool skips_resident = true;
};
struct my_bundle {
    using formats = two_formats;
    using device = avx2;
    using loading = my_loading;
    using inputs = fg::reuse::shared;
    using activations = fg::reuse::per_product;
    using precision = fg::ops::cache_precision<fg::half>;
};

template <class A, class B>
constexpr bool same = std::is_same_v<typename A::precision, typename B::precision>&&
    std::is_same_v<typename A::formats, typename B::formats>&& std::is_same_v<typename A::device, typename B::device>&&
        std::is_same_v<typename A::loading, typename B::loading>&& std::is_same_v<typename A::inputs, typename B::inputs>&&
            std::is_same_v<typename A::activations, typename B::activations>;

}  // namespace

TEST_CASE("policies not named are the defaults") {
    using none = fg::policies<>;
    static_assert(std::is_same_v<none::formats, fg::quant::all>);
    static_assert(std::is_same_v<none::device, fg::default_device<fg::quant::all>>);
    static_assert(fg::device::image_target<none::device>);
    static_assert(std::is_same_v<none::device::activations, fg::device::q8_activations>);
    static_assert(std::is_same_v<fg::policies<two_formats>::device::image_formats, two_formats>);
    static_assert(std::is_same_v<none::loading, fg::reuse::default_weight_loading>);
    static_assert(std::is_same_v<none::inputs, fg::reuse::default_shared_inputs>);
    static_assert(std::is_same_v<none::activations, fg::reuse::shared_activations>);
    static_assert(std::is_same_v<none::precision, fg::ops::default_cache_precision>);
    static_assert(std::is_same_v<none::precision::key_value, float> && std::is_same_v<none::precision::index, fg::bfloat16>);
    static_assert(std::is_empty_v<none>);
    CHECK(none::loading::name == fg::reuse::default_weight_loading::name);
    CHECK(none::inputs::name == "incremental");
}

TEST_CASE("policies come in any order") {
    using in_order = fg::policies<two_formats, avx2, fg::reuse::reload_always, fg::reuse::per_layer>;
    using reversed = fg::policies<fg::reuse::per_layer, fg::reuse::reload_always, avx2, two_formats>;
    using mixed = fg::policies<avx2, fg::reuse::reload_always, fg::reuse::per_layer, two_formats>;
    static_assert(same<in_order, reversed> && same<in_order, mixed>);
    static_assert(std::is_same_v<mixed::formats, two_formats> && std::is_same_v<mixed::device, avx2>);
    static_assert(!same<in_order, fg::policies<>>);
    CHECK(reversed::inputs::name == "per_layer");
    using one_by_one = fg::policies<avx2, fg::reuse::per_product, fg::reuse::shared>;
    static_assert(std::is_same_v<one_by_one::activations, fg::reuse::per_product>);
    static_assert(std::is_same_v<one_by_one::inputs, fg::reuse::shared> &&
                  !same<one_by_one, fg::policies<avx2, fg::reuse::shared>>);
    using coarse = fg::ops::cache_precision<fg::quant::q8_0, fg::half>;
    static_assert(std::is_same_v<fg::policies<avx2, coarse, two_formats>::precision, coarse>);
}

TEST_CASE("own policies and own bundles serve too") {
    static_assert(std::is_same_v<fg::policies<my_loading>::loading, my_loading>);
    static_assert(fg::policy_bundle<my_bundle> && fg::policy_bundle<fg::policies<my_loading>>);
    static_assert(!fg::policy_bundle<int> && !fg::policy_bundle<two_formats>);
    CHECK(my_bundle::loading::skips_resident);
}

TEST_CASE("a policy speaks for one thing only") {
    // Otherwise an option could land in two places of a bundle.
    static_assert(fg::reuse::weight_loading_policy<fg::reuse::reload_always> &&
                  !fg::reuse::shared_input_policy<fg::reuse::reload_always>);
    static_assert(fg::reuse::weight_loading_policy<fg::reuse::skip_resident> &&
                  !fg::reuse::shared_input_policy<fg::reuse::skip_resident>);
    static_assert(fg::reuse::shared_input_policy<fg::reuse::shared> && !fg::reuse::weight_loading_policy<fg::reuse::shared>);
    static_assert(fg::reuse::shared_input_policy<fg::reuse::per_layer> &&
                  !fg::reuse::weight_loading_policy<fg::reuse::per_layer>);
    static_assert(fg::reuse::shared_input_policy<fg::reuse::memoised> && !fg::reuse::weight_loading_policy<fg::reuse::memoised>);
    static_assert(fg::reuse::shared_input_policy<fg::reuse::incremental> &&
                  !fg::reuse::weight_loading_policy<fg::reuse::incremental>);
    static_assert(!fg::device::target<fg::reuse::shared> && !fg::quant::format_list<fg::device::cpu<>>);
    static_assert(!fg::ops::cache_precision_policy<fg::reuse::shared> && !fg::ops::cache_precision_policy<two_formats> &&
                  !fg::reuse::shared_input_policy<fg::ops::cache_precision<>> &&
                  !fg::quant::format_list<fg::ops::cache_precision<>>);
    CHECK_FALSE(fg::reuse::reload_always::skips_resident);
    CHECK(fg::policies<>::loading::name == "skip_resident");
}
