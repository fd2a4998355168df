// A model's layers are what its spec lists, a consumer's own among them.
#include "../../examples/custom_attention/sliding_window.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

template <std::size_t Tokens>
struct windowed : model::qwen35 {
    static constexpr std::string_view name = "windowed";
    template <class Build>
    using layers = model::pattern<model::gdn_layer<Build>, model::gdn_layer<Build>, model::gdn_layer<Build>,
                                  mine::sliding_window<Build, Tokens>>;
};

struct no_recurrence : model::qwen35 {
    template <class Build>
    using layers = model::pattern<model::full_layer<Build>>;
};
struct two_kinds : model::qwen35 {
    template <class Build>
    using layers = model::pattern<model::full_layer<Build>, model::gdn_layer<Build>, mine::sliding_window<Build, 4>>;
};

const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023, 8, 2, 77, 12, 640, 3};

}  // namespace

TEST_CASE("a variant of one's own is one name in a spec") {
    const gguf_model file(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    using device_type = device::cpu<isa::baseline>;
    auto full = file.run_on<model::qwen35, device_type, reuse::shared_activations>({.sequences = 2, .max_tokens = 64}, {});
    const auto want = full->run(tokens);

    SUBCASE("a window that holds everything is full attention, bit for bit") {
        auto wide = file.run_on<windowed<64>, device_type, reuse::shared_activations>({.sequences = 2, .max_tokens = 64}, {});
        CHECK(same_bits(wide->run(tokens), want));
        CHECK(same_bits(wide->run_pieces(tokens, {1, 4, 2}, sequence_id{1}), want));
    }
    SUBCASE("a narrow one sees less, however its tokens come, and is saved with the rest") {
        auto narrow = file.run_on<windowed<4>, device_type, reuse::shared_activations>({.sequences = 2, .max_tokens = 64}, {});
        const auto got = narrow->run(tokens);
        const std::size_t width = narrow->vocabulary();
        const auto rows = [&](const std::vector<float>& of, std::size_t begin, std::size_t end) {
            return std::vector<float>(of.begin() + static_cast<std::ptrdiff_t>(begin * width),
                                      of.begin() + static_cast<std::ptrdiff_t>(end * width));
        };
        CHECK(same_bits(rows(got, 0, 4), rows(want, 0, 4)));
        CHECK_FALSE(same_bits(rows(got, 4, 5), rows(want, 4, 5)));
        CHECK(same_bits(narrow->run_pieces(tokens, {3, 1}, sequence_id{1}), got));

        byte_writer out;
        narrow->state.save(sequence_id{0}, out);
        const auto next = narrow->run(std::span(tokens).first(2));
        byte_reader in(out.bytes());
        must(narrow->state.load(sequence_id{1}, in));
        CHECK(same_bits(narrow->run(std::span(tokens).first(2), sequence_id{1}), next));
        const auto back = narrow->state.rollback(sequence_id{0}, 1);
        REQUIRE_FALSE(back);
        CHECK(back.error().code == errc::cannot_rollback);
        byte_reader cut(std::span(out.bytes()).first(out.bytes().size() - 1));
        CHECK_FALSE(narrow->state.load(sequence_id{1}, cut));
    }
}

TEST_CASE("a file whose layers a pattern does not have is refused") {
    const gguf_model file(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    CHECK(model::validate<model::qwen35>(file.sizes));
    const auto none = model::validate<no_recurrence>(file.sizes);
    REQUIRE_FALSE(none);
    CHECK(none.error().code == errc::unsupported);
    // Layer 2 is recurrent in the file and a window in the pattern; layer 3 is not recurrent, and two kinds could be meant.
    model::config other = file.sizes;
    CHECK_FALSE(model::validate<two_kinds>(other));
    other.layers = {model::layer_kind::attention, model::layer_kind::gdn, model::layer_kind::attention};
    CHECK(model::validate<two_kinds>(other));
    other.layers = {model::layer_kind::gdn, model::layer_kind::gdn, model::layer_kind::attention};
    CHECK(model::validate<two_kinds>(other));  // the one kind that is recurrent
    other.layers = {model::layer_kind::attention, model::layer_kind::attention, model::layer_kind::attention};
    CHECK_FALSE(model::validate<two_kinds>(other));
}
