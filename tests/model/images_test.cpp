// Models whose weights are images, here on the CPU: the same bits as from the file, and nothing loaded that nobody reads.
#include <sys/mman.h>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

template <class Isa>
using packed = device::packed_cpu<Isa, counters_on>;

/// A packed_cpu that refuses the images that a test names, by the number of calls of pack().
template <class Isa>
class refusing : public packed<Isa> {
public:
    std::function<bool(std::size_t)> refuses = [](std::size_t) { return false; };
    std::uint64_t lost = 0;
    std::size_t calls = 0;
    [[nodiscard]] result<quant::panel_weights> pack(std::span<const quant::weight_view> parts) {
        if (refuses(calls++)) return fail(errc::out_of_memory, "the device is full");
        return packed<Isa>::pack(parts);
    }
    [[nodiscard]] std::uint64_t generation() const noexcept { return lost; }
};

/// Prompt and a few tokens one by one, as a decode does.
template <class Running>
std::vector<float> prompt_and_decode(Running& m, std::span<const std::int32_t> tokens) {
    return m.run_pieces(tokens, {tokens.size() / 2, 1});
}

/// All images ahead of the first pass.
template <class Running, class Progress = model::no_progress>
void pack(Running& m, Progress&& progress = {}) {
    must(m.model.pack(m.pass, progress));
}

template <class Spec>
std::size_t products_a_token(const model::config& c) {
    std::size_t out = 1;  // the head
    for (const model::layer_kind kind : c.layers) out += (kind == model::layer_kind::gdn ? 4u : 2u) + 2u;
    return out + c.ngrams.size();
}

std::span<const std::byte> bytes_of(const gguf_model& model, const char* tensor) {
    return must(model.file.bytes(*model.file.find(tensor)));
}

template <class Spec>
void check_packed_model(const std::string& name) {
    const golden_model golden(name);
    const auto tokens = golden.tokens();
    const model::state_options options{.sequences = 1, .max_tokens = 64};
    // The kernels of each instruction set are compared in tests/ops.
    [&]<class Isa>(type_tag<Isa>) {
        auto direct = golden.run<Spec, Isa>(options);
        const auto want = prompt_and_decode(*direct, tokens);

        auto skip = golden.run_on<Spec, packed<Isa>>(options, {});
        CHECK(same_bits(prompt_and_decode(*skip, tokens), want));
        const std::uint64_t packed_images = skip->store.counted(counter::images_packed);
        CHECK(skip->store.counted(counter::host_fallbacks) == 0);
        CHECK(skip->store.bytes() > 0);
        // A second request: every image is there.
        skip->state.clear(sequence_id{0});
        CHECK(same_bits(prompt_and_decode(*skip, tokens), want));
        if (golden.sizes.experts == 0) CHECK(skip->store.counted(counter::images_packed) == packed_images);

        auto reload = golden.run_on<Spec, packed<Isa>, reuse::reload_always>(options, {});
        CHECK(same_bits(prompt_and_decode(*reload, tokens), want));
        CHECK(reload->store.counted(counter::loads_skipped) == 0);
        auto unkept = golden.run_on<Spec, packed<Isa>>(options, {.keep = false});
        CHECK(same_bits(prompt_and_decode(*unkept, tokens), want));
        CHECK(unkept->store.template of<attention::gdn_products>().images().bytes() == 0);

        // Ahead of the first pass: each matrix once, in bytes that are reported; then no pass packs anything.
        test::threads threads(3);
        std::uint64_t unneeded = 0, done = 0, total = 0;
        model::weight_store_options told;
        told.source_unneeded = [&](std::span<const std::byte> part) { unneeded += part.size(); };
        auto ahead = golden.run_on<Spec, packed<Isa>>(options, told, threads);
        pack(*ahead, [&](std::uint64_t now, std::uint64_t all) {
            CHECK(now >= done);
            done = now;
            total = all;
        });
        CHECK(done == total);
        CHECK(unneeded == total);
        const std::uint64_t images = ahead->store.counted(counter::images_packed);
        if (golden.sizes.experts == 0 && golden.sizes.ngrams.empty()) {
            CHECK(images == packed_images);
            CHECK(ahead->store.bytes() == skip->store.bytes());
        }
        CHECK(images >= packed_images);
        CHECK(same_bits(prompt_and_decode(*ahead, tokens), want));
        pack(*ahead);
        CHECK(ahead->store.counted(counter::images_packed) == images);
        CHECK(unneeded == total);
        CHECK(ahead->store.counted(counter::host_fallbacks) == 0);
    }(type_tag<isa::baseline>{});
}

/// The same where everything is packed ahead: what is refused then is not tried again, but for routed experts.
template <class Spec, class Isa>
void check_refusals_ahead(const golden_model& golden, std::span<const float> want, std::span<const std::int32_t> tokens,
                          const std::function<bool(std::size_t)>& refuses, bool any) {
    auto m = golden.run_on<Spec, refusing<Isa>>({.sequences = 1, .max_tokens = 64}, {});
    m->device.refuses = refuses;
    std::uint64_t done = 0, total = 0;
    pack(*m, [&](std::uint64_t now, std::uint64_t all) { done = now, total = all; });
    CHECK(done == total);
    const std::size_t calls = m->device.calls;
    CHECK(same_bits(prompt_and_decode(*m, tokens), {want.begin(), want.end()}));
    if (golden.sizes.experts == 0) {
        CHECK(m->device.calls == calls);
        CHECK((m->store.counted(counter::host_fallbacks) != 0) == any);
    }
}

/// `refuses` says which calls of pack() fail; the result must not change, whatever it says. A routed expert that is refused
/// once makes room for itself by dropping another.
template <class Spec, class Isa>
void check_refusals(const golden_model& golden, std::span<const float> want, std::span<const std::int32_t> tokens,
                    const std::function<bool(std::size_t)>& refuses, bool any) {
    auto m = golden.run_on<Spec, refusing<Isa>>({.sequences = 1, .max_tokens = 64}, {});
    m->device.refuses = refuses;
    CHECK(same_bits(prompt_and_decode(*m, tokens), {want.begin(), want.end()}));
    check_refusals_ahead<Spec, Isa>(golden, want, tokens, refuses, any);
    const bool evicted = m->store.experts().images().evictions() != 0;
    CHECK((evicted || m->store.counted(counter::host_fallbacks) != 0) == any);
    CHECK((evicted || m->store.last_failure().has_value()) == any);
}

}  // namespace

TEST_CASE("packed images: Qwen3.5 dense") { check_packed_model<model::qwen35>("models/qwen3_5_dense"); }
TEST_CASE("packed images: Qwen3.5 mixture of experts") { check_packed_model<model::qwen35moe>("models/qwen3_5_moe"); }
TEST_CASE("packed images: Qwen4-Exp") { check_packed_model<model::qwen4exp<4>>("models/qwen4_exp"); }

TEST_CASE("packed images: mixed quantised formats give the bits of the file's own blocks") {
    const auto check = []<class Spec>(const gguf_model& file) {
        const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023, 8, 2};
        auto direct = file.run<Spec, isa::baseline>({.sequences = 1, .max_tokens = 64});
        auto images = file.run_on<Spec, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
        CHECK(same_bits(prompt_and_decode(*images, tokens), prompt_and_decode(*direct, tokens)));
    };
    const std::string models = FRUGAL_EXAMPLE_MODELS "/";
    check.template operator()<model::qwen35>(gguf_model(models + "tiny-qwen35-Q4_K_M.gguf"));
    check.template operator()<model::qwen4exp<>>(gguf_model(models + "tiny-qwen4exp-Q4_K_M.gguf"));
}

TEST_CASE("A02 a decode step with every image resident loads nothing: all products run from images") {
    const golden_model golden("models/qwen3_5_dense");
    const auto tokens = golden.tokens();
    auto m = golden.run_on<model::qwen35, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    m->run(std::span(tokens).first(4));
    const auto before = [&](counter which) { return m->store.counted(which); };
    const std::uint64_t packs = before(counter::images_packed), bytes = before(counter::dequantized_bytes),
                        calls = before(counter::dequantize_calls), products = before(counter::image_products);
    m->run(std::span(tokens).subspan(4, 1));
    CHECK(m->store.counted(counter::images_packed) == packs);
    CHECK(m->store.counted(counter::dequantized_bytes) == bytes);
    CHECK(m->store.counted(counter::dequantize_calls) == calls);
    CHECK(m->store.counted(counter::image_products) - products == products_a_token<model::qwen35>(golden.sizes));
}

TEST_CASE("images on the CPU: once packed, the source blocks are never touched again") {
    // The file's bytes become unreadable after the first pass: a read of them would end the program.
    const auto bytes = embedded_file("tiny-qwen35");
    void* copy = ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(copy != MAP_FAILED);
    std::memcpy(copy, bytes.data(), bytes.size());
    const std::span<const std::byte> view(static_cast<const std::byte*>(copy), bytes.size());
    const gguf_model file(must(io::gguf_file::parse(view, "a copy")));
    std::vector<std::span<const std::byte>> unneeded;
    model::weight_store_options images;
    images.source_unneeded = [&](std::span<const std::byte> part) { unneeded.push_back(part); };
    auto m = file.run_on<model::qwen35, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, images);
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4};
    const auto want = m->run(tokens);
    m->state.clear(sequence_id{0});
    std::size_t total = 0;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    for (const auto part : unneeded) {
        total += part.size();
        const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
        const auto end = (reinterpret_cast<std::uintptr_t>(part.data()) + part.size()) / page * page;
        if (begin >= end) continue;
        // The embedding is read row by row as long as the model lives, and in a tied model it is the head too.
        if (part.data() == bytes_of(file, "token_embd.weight").data()) continue;
        REQUIRE(::mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) == 0);
    }
    CHECK(total > bytes.size() / 2);
    CHECK(same_bits(m->run(tokens), want));
    ::munmap(copy, bytes.size());
}

TEST_CASE("C58 a device that refuses images: the host takes over just those products, with the same result") {
    for (const char* name : {"models/qwen3_5_dense", "models/qwen4_exp"}) {
        CAPTURE(name);
        const golden_model golden(name);
        const auto tokens = golden.tokens();
        const auto check = [&]<class Spec>(type_tag<Spec>) {
            using isa = frugal::isa::baseline;
            auto direct = golden.run<Spec, isa>({.sequences = 1, .max_tokens = 64});
            const auto want = prompt_and_decode(*direct, tokens);
            check_refusals<Spec, isa>(
                golden, want, tokens, [](std::size_t) { return false; }, false);
            check_refusals<Spec, isa>(
                golden, want, tokens, [](std::size_t) { return true; }, true);
            for (const std::size_t n : {0u, 1u, 2u, 7u}) {
                check_refusals<Spec, isa>(
                    golden, want, tokens, [=](std::size_t call) { return call == n; }, true);
                check_refusals<Spec, isa>(
                    golden, want, tokens, [=](std::size_t call) { return call >= n; }, true);
            }
        };
        if (golden.sizes.architecture == model::qwen35::name)
            check(type_tag<model::qwen35>{});
        else
            check(type_tag<model::qwen4exp<4>>{});
    }
}

TEST_CASE("C58 where the caller wants errors instead, a refused image ends the pass with the device's reason") {
    const golden_model golden("models/qwen3_5_dense");
    const auto tokens = golden.tokens();
    auto m = golden.run_on<model::qwen35, refusing<isa::baseline>>({.sequences = 1, .max_tokens = 64},
                                                                   {.on_failure = reuse::on_device_failure::return_error});
    m->device.refuses = [](std::size_t call) { return call == 3; };
    std::vector<float> logits(m->vocabulary());
    const segment one{sequence_id{0}, 0, 1};
    const std::size_t row = 0;
    const auto done = m->model.forward(m->pass, m->state, {std::span(tokens).first(1), {&one, 1}, {}, {&row, 1}},
                                       {logits.data(), 1, logits.size()});
    REQUIRE_FALSE(done);
    CHECK(done.error().message == "the device is full");
    m->device.refuses = [](std::size_t) { return true; };
    const status ahead = m->model.pack(m->pass);
    REQUIRE_FALSE(ahead);
    CHECK(ahead.error().message == "the device is full");
    CHECK(m->store.counted(counter::images_packed) == 3);
    // What was packed before stays; after a clear the pass succeeds.
    m->device.refuses = [](std::size_t) { return false; };
    m->state.clear(sequence_id{0});
    auto direct = golden.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    CHECK(same_bits(m->run(tokens), direct->run(tokens)));
}

TEST_CASE("A09 A10 host products: on, off and on again in one run change nothing but who computes") {
    const golden_model golden("models/qwen3_5_moe");
    const auto tokens = golden.tokens();
    auto direct = golden.run<model::qwen35moe, isa::baseline>({.sequences = 1, .max_tokens = 64});
    auto m = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    for (std::size_t t = 0; t < 12; ++t) {
        CAPTURE(t);
        const bool on_host = t % 3 == 1;
        m->store.use_host(on_host);
        const std::uint64_t before = m->store.counted(counter::image_products);
        CHECK(same_bits(m->run({&tokens[t], 1}), direct->run({&tokens[t], 1})));
        CHECK((m->store.counted(counter::image_products) == before) == on_host);
    }
}

TEST_CASE("A11 A13 C56 new weights or a lost device: every image is packed anew, once") {
    const golden_model golden("models/qwen3_5_dense");
    const auto tokens = golden.tokens();
    auto m = golden.run_on<model::qwen35, refusing<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    const auto first = m->run(std::span(tokens).first(5));
    const std::uint64_t images = m->store.counted(counter::images_packed);
    const std::size_t bytes = m->store.bytes();
    const auto again = [&] {
        m->state.clear(sequence_id{0});
        CHECK(same_bits(m->run(std::span(tokens).first(5)), first));
        CHECK(m->store.bytes() == bytes);
        return m->store.counted(counter::images_packed);
    };
    CHECK(again() == images);
    m->store.weights_changed();
    CHECK(again() == 2 * images);
    m->device.lost = 1;
    CHECK(again() == 3 * images);
    CHECK(again() == 3 * images);
}

TEST_CASE("packing ahead: anew after a loss, nothing where the host computes or images are not kept") {
    const golden_model golden("models/qwen3_5_dense");
    auto m = golden.run_on<model::qwen35, refusing<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    const auto packs = [&] {
        const std::uint64_t before = m->store.counted(counter::images_packed);
        pack(*m);
        return m->store.counted(counter::images_packed) - before;
    };
    m->store.use_host(true);
    CHECK(packs() == 0);
    m->store.use_host(false);
    const std::uint64_t images = packs();
    CHECK(images > 10);
    CHECK(packs() == 0);
    m->device.lost = 1;
    CHECK(packs() == images);
    m->store.weights_changed();
    CHECK(packs() == images);
    auto unkept = golden.run_on<model::qwen35, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {.keep = false});
    pack(*unkept);
    CHECK(unkept->store.counted(counter::images_packed) == 0);
}

TEST_CASE("packing ahead: the file's pages go as the images come, not at the end") {
    const golden_model golden("models/qwen3_5_moe");
    std::vector<std::size_t> held;
    std::function<std::size_t()> images = [] { return std::size_t{0}; };
    model::weight_store_options told;
    told.source_unneeded = [&](std::span<const std::byte>) { held.push_back(images()); };
    auto m = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, told);
    images = [&] { return m->store.bytes(); };
    pack(*m);
    REQUIRE(held.size() > 20);
    CHECK(std::is_sorted(held.begin(), held.end()));
    CHECK(held.front() < m->store.bytes() / 10);
    CHECK(held[held.size() / 2] > m->store.bytes() / 10);
    CHECK(held[held.size() / 2] < m->store.bytes() / 10 * 9);
}

TEST_CASE("packing ahead keeps within the budgets, and what is beyond is not tried by the passes again") {
    const golden_model golden("models/qwen3_5_moe");
    const auto tokens = golden.tokens();
    auto all = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    pack(*all);
    const auto want = prompt_and_decode(*all, tokens);
    const auto bytes_of_attention = [](const auto& m) {
        return m.store.template of<attention::full_products>().images().bytes();
    };
    const std::size_t experts = all->store.experts().images().bytes(), attention = bytes_of_attention(*all);
    CHECK(experts > attention);
    for (const std::size_t part : {experts / 2, experts / 5, std::size_t{1}}) {
        CAPTURE(part);
        auto some = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64},
                                                                           {.expert_byte_budget = part});
        pack(*some);
        CHECK(some->store.experts().images().bytes() <= part);
        if (part > 1) CHECK(some->store.experts().images().bytes() > part / 2);
        CHECK(some->store.experts().images().evictions() == 0);
        CHECK(some->store.counted(counter::host_fallbacks) == 0);
        CHECK(same_bits(prompt_and_decode(*some, tokens), want));
    }
    auto some = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64},
                                                                       {.byte_budget = attention / 2});
    pack(*some);
    CHECK(bytes_of_attention(*some) <= attention / 2);
    CHECK(bytes_of_attention(*some) > 0);
    CHECK(some->store.counted(counter::host_fallbacks) > 0);
    const std::uint64_t packs = some->store.counted(counter::images_packed);
    CHECK(same_bits(prompt_and_decode(*some, tokens), want));
    CHECK(some->store.counted(counter::images_packed) == packs);
}

TEST_CASE("packing ahead for a device that is too small: what every token needs comes before the routed experts") {
    const golden_model golden("models/qwen3_5_moe");
    const auto tokens = golden.tokens();
    auto none =
        golden.run_on<model::qwen35moe, refusing<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {.expert_byte_budget = 0});
    pack(*none);
    const std::uint64_t needed = none->store.counted(counter::images_packed);
    CHECK(none->store.experts().images().bytes() == 0);
    auto m = golden.run_on<model::qwen35moe, refusing<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    m->device.refuses = [&](std::size_t call) { return call >= needed + 2; };
    pack(*m);
    CHECK(m->store.counted(counter::images_packed) == needed + 2);
    CHECK(m->store.counted(counter::host_fallbacks) == 0);
    auto direct = golden.run<model::qwen35moe, isa::baseline>({.sequences = 1, .max_tokens = 64});
    CHECK(same_bits(m->run(tokens), direct->run(tokens)));
}

TEST_CASE("C56 an update in place is seen after weights_changed, not before") {
    auto bytes = embedded_file("tiny-qwen35");
    const gguf_model file(must(io::gguf_file::parse(std::span<const std::byte>(bytes), "a copy")));
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4};
    auto m = file.run_on<model::qwen35, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    const auto old = m->run(tokens);
    const auto down = bytes_of(file, "blk.0.ffn_down.weight");
    std::memset(bytes.data() + (down.data() - bytes.data()), 0, down.size());
    m->state.clear(sequence_id{0});
    CHECK(same_bits(m->run(tokens), old));
    m->store.weights_changed();
    m->state.clear(sequence_id{0});
    const auto fresh = m->run(tokens);
    CHECK_FALSE(same_bits(fresh, old));
    auto direct = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    CHECK(same_bits(fresh, direct->run(tokens)));
}

TEST_CASE("routed experts: the most recently used images stay within the budget") {
    const golden_model golden("models/qwen3_5_moe");
    const auto tokens = golden.tokens();
    auto direct = golden.run<model::qwen35moe, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = prompt_and_decode(*direct, tokens);
    auto all = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {});
    CHECK(same_bits(prompt_and_decode(*all, tokens), want));
    const std::size_t whole = all->store.experts().images().bytes();
    CHECK(all->store.experts().images().evictions() == 0);
    for (const std::size_t part : {whole / 2, whole / 5}) {
        auto some = golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64},
                                                                           {.expert_byte_budget = part});
        CHECK(same_bits(prompt_and_decode(*some, tokens), want));
        CHECK(some->store.experts().images().bytes() <= part);
        CHECK(some->store.experts().images().evictions() > 0);
        CHECK(some->store.counted(counter::host_fallbacks) == 0);
    }
    auto none =
        golden.run_on<model::qwen35moe, packed<isa::baseline>>({.sequences = 1, .max_tokens = 64}, {.expert_byte_budget = 1});
    CHECK(same_bits(prompt_and_decode(*none, tokens), want));
    CHECK(none->store.experts().counters().read(counter::host_fallbacks) > 0);
}
