#pragma once
/// The tokenizer of the Qwen families: byte-level BPE with NFC normalisation, from a GGUF file or a tokenizer.json.
///
/// It gives the ids that transformers gives. llama.cpp does not normalise, so for text that is not in NFC (a decomposed accent,
/// say) its ids differ; transformers is right, since the models were trained with its tokenizer. What is a letter or a mark is
/// decided by the Unicode data of the installed PCRE2 and utf8proc: a text with characters that a newer Unicode added may be cut
/// otherwise than by a tokenizers package with other data.
///
/// Opt-in: needs PCRE2 (libpcre2-8), utf8proc (libutf8proc) and nlohmann/json. Of the library, only chat.hpp includes it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/byte_level.hpp"
#include "frugal/io/byte_pair_merger.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/json.hpp"
#include "frugal/io/nfc.hpp"
#include "frugal/io/pre_tokenizer.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// What a token is, apart from its text.
enum class token_kind : std::uint8_t {
    normal,   ///< made by merging bytes
    added,    ///< found in the text as a whole, before merging
    special,  ///< an added token that steers the model: end of text, start of a turn
    unused,   ///< a number without a text
};

/// Everything that a tokenizer is made of, for sources other than the two below. Views must last until `tokenizer::build`
/// returns.
struct FRUGAL_FLAGGED tokenizer_source {
    struct token {
        std::string_view text;  ///< as the source spells it: normal tokens in the byte-level alphabet, added ones plain
        token_kind kind = token_kind::unused;
        bool normalized = false;  ///< an added token to be looked for after normalisation, not before
    };
    struct merge {
        std::string_view left, right;
    };
    std::string name;  ///< stands in messages
    std::vector<token> tokens;
    std::vector<merge> merges;  ///< the first has rank 0
    std::string pattern;        ///< of the pre-tokenizer
    bool normalize = true;      ///< NFC
    bool whole_pieces_first = false;  ///< a piece that is itself a token is not built by merges (`ignore_merges`)
    std::vector<std::int32_t> end_ids;  ///< end-of-generation ids that the source names
    std::optional<std::int32_t> first_id;  ///< an id that the source wants in front of every text
};

/// Immutable once built: may be used from several threads at once. Move-only.
class FRUGAL_FLAGGED tokenizer {
public:
    /// Reads `tokenizer.ggml.*`: model gpt2 with pre-tokenizer qwen35 or qwen2. Both normalise to NFC, which GGUF does not
    /// record. A token of normal type that no merge makes and that looks like a tag (`<think>`) counts as an added token:
    /// converters leave such tokens unmarked. Errors: not_found, invalid_argument (a key is missing or of another type),
    /// unsupported (another model or pre-tokenizer, a key that is not known), malformed_file (see build).
    [[nodiscard]] static result<tokenizer> from_gguf(const gguf_file& file) {
        FRUGAL_TRY_ASSIGN(const std::string_view model, file.string("tokenizer.ggml.model"));
        if (model != "gpt2")
            return fail(errc::unsupported, file.name(), ": tokenizer model ", printable(model),
                        "; only 'gpt2' (byte-level BPE) can be read");
        FRUGAL_TRY_ASSIGN(const std::string_view pre, file.string("tokenizer.ggml.pre"));
        if (pre != "qwen35" && pre != "qwen2")
            return fail(errc::unsupported, file.name(), ": pre-tokenizer ", printable(pre),
                        "; only 'qwen35' and 'qwen2' are known");
        FRUGAL_TRY(check_keys(file));
        tokenizer_source source;
        source.name = file.name();
        source.pattern = pre == "qwen35" ? qwen35_pattern : qwen2_pattern;

        FRUGAL_TRY_ASSIGN(const auto texts, file.string_list("tokenizer.ggml.tokens"));
        std::vector<std::int64_t> types(texts.size(), gguf_normal);
        if (file.has("tokenizer.ggml.token_type")) {
            FRUGAL_TRY_ASSIGN(types, file.i64_list("tokenizer.ggml.token_type"));
            if (types.size() != texts.size())
                return fail(errc::malformed_file, file.name(), ": ", types.size(), " token types for ", texts.size(), " tokens");
        }
        source.tokens.reserve(texts.size());
        for (std::size_t i = 0; i < texts.size(); ++i) source.tokens.push_back({texts[i], kind_of(types[i]), false});

        FRUGAL_TRY_ASSIGN(const auto merges, file.string_list("tokenizer.ggml.merges"));
        source.merges.reserve(merges.size());
        for (const auto line : merges) {
            FRUGAL_TRY_ASSIGN(const auto merge, split_merge(line, file.name()));
            source.merges.push_back(merge);
        }
        mark_unmarked_tags(source);

        for (const std::string_view key :
             {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
            if (file.has(key)) {
                FRUGAL_TRY_ASSIGN(const std::int32_t id, file.i32(key));
                source.end_ids.push_back(id);
            }
        FRUGAL_TRY_ASSIGN(const bool prepend, file.boolean_or("tokenizer.ggml.add_bos_token", false));
        if (prepend) {
            FRUGAL_TRY_ASSIGN(source.first_id, file.i32("tokenizer.ggml.bos_token_id"));
        }
        return build(source);
    }

    /// Reads the text of a tokenizer.json of the Qwen families: model BPE, normalizer NFC or none, pre-tokenizer one Split by a
    /// pattern then ByteLevel. `config` is the text of tokenizer_config.json, which names the end-of-text token and says whether
    /// a first token belongs in front of every text (add_bos_token); empty if there is none. Errors: malformed_file (see build;
    /// also not JSON, a duplicate in the vocabulary), unsupported (a setting that this tokenizer does not follow: it is named,
    /// never ignored).
    [[nodiscard]] static result<tokenizer> from_tokenizer_json(std::string_view text, std::string_view config = {},
                                                               const std::string& name = "tokenizer.json");

    /// Builds from parts. Errors: malformed_file (a byte without a token, a duplicate token, a merge of or into an unknown token,
    /// an end id out of range), unsupported (the pattern).
    [[nodiscard]] static result<tokenizer> build(const tokenizer_source& source);

    /// Ids of `text`, as transformers' `encode` gives them. Invalid UTF-8 reads as U+FFFD (see repair_utf8); NUL is a character
    /// like any other. With `parse_special` the texts of added and special tokens become those tokens, longest first; without it
    /// they are plain text, as text from a user should be. Errors: invalid_argument (1 GiB or more), and those of
    /// pre_tokenizer::split.
    [[nodiscard]] result<std::vector<std::int32_t>> encode(std::string_view text, bool parse_special = true) const {
        if (text.size() > most_text)
            return fail(errc::invalid_argument, "a text of ", text.size(), " bytes is too long to tokenise");
        std::string repaired;
        if (valid_utf8_prefix(text) != text.size()) {
            repaired = repair_utf8(text);
            text = repaired;
        }
        std::vector<std::int32_t> out;
        byte_pair_merger::scratch work;
        if (!parse_special) {
            FRUGAL_TRY(encode_plain(text, false, work, out));
            return out;
        }
        FRUGAL_TRY(
            split_added(text, raw_added_, out, [&](std::string_view part) { return encode_plain(part, true, work, out); }));
        return out;
    }

    /// Ids of a text that begins a sequence: first_id() in front, where the source wants one, then those of encode.
    [[nodiscard]] result<std::vector<std::int32_t>> encode_prompt(std::string_view text, bool parse_special = true) const {
        FRUGAL_TRY_ASSIGN(auto out, encode(text, parse_special));
        if (first_id_) out.insert(out.begin(), *first_id_);
        return out;
    }

    /// The bytes of `ids`, exactly: what is cut off or invalid as UTF-8 stays so (stream_decoder repairs). Special tokens are
    /// spelled out unless `skip_special`. An id out of range gives U+FFFD.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const {
        std::string out;
        for (const auto id : ids)
            if (!(skip_special && is_special(id))) out += text_of(id);
        return out;
    }

    /// Bytes of one token: a fragment of a character, maybe. U+FFFD for an id out of range.
    [[nodiscard]] std::string_view text_of(std::int32_t id) const noexcept {
        if (!in_range(id)) return replacement_character;
        const auto& place = entries_[static_cast<std::size_t>(id)];
        return {bytes_.data() + place.begin, place.length};
    }
    /// The token whose bytes are `text`; an added token before a normal one.
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view text) const {
        const auto found = ids_.find(text);
        if (found == ids_.end()) return std::nullopt;
        return found->second;
    }
    /// Whether `id` is a special token, such as <|im_end|>; other added tokens are not.
    [[nodiscard]] bool is_special(std::int32_t id) const noexcept { return kind_of_id(id) == token_kind::special; }
    /// Whether `id` is found in texts as a whole (special tokens included).
    [[nodiscard]] bool is_added(std::int32_t id) const noexcept {
        const auto kind = kind_of_id(id);
        return kind == token_kind::added || kind == token_kind::special;
    }
    /// Lets generation end at these ids too: those of a model's configuration (model::config::eos), which need not be in the
    /// vocabulary. Part of loading; not to be called while another thread uses the tokenizer.
    void also_end_at(std::span<const std::int32_t> ids) {
        end_ids_.insert(end_ids_.end(), ids.begin(), ids.end());
        std::sort(end_ids_.begin(), end_ids_.end());
        end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
    }
    /// Ids at which generation ends, ascending: those the source names, <|endoftext|> and <|im_end|>, those of also_end_at.
    [[nodiscard]] std::span<const std::int32_t> eos_ids() const noexcept { return end_ids_; }
    [[nodiscard]] bool is_eos(std::int32_t id) const noexcept { return std::binary_search(end_ids_.begin(), end_ids_.end(), id); }
    /// An id that the source wants in front of every text (see encode_prompt); Qwen has none.
    [[nodiscard]] std::optional<std::int32_t> first_id() const noexcept { return first_id_; }
    /// Ids are 0 … size() - 1. A model may have more rows than that.
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

private:
    struct entry {
        std::uint64_t begin = 0;
        std::uint32_t length = 0;
        token_kind kind = token_kind::unused;
    };
    /// Added tokens by text, and the lengths that occur, longest first.
    struct added_set {
        std::unordered_map<std::string, std::int32_t> ids;
        std::vector<std::size_t> lengths;
        std::array<bool, 256> starts{};
    };
    static constexpr std::size_t most_text =
        (std::numeric_limits<std::uint32_t>::max)() / 4;  // repair and NFC may lengthen it threefold
    static constexpr std::int64_t gguf_normal = 1, gguf_control = 3, gguf_user_defined = 4, gguf_unused = 5;

    tokenizer() = default;

    [[nodiscard]] bool in_range(std::int32_t id) const noexcept {
        return id >= 0 && static_cast<std::size_t>(id) < entries_.size();
    }
    [[nodiscard]] token_kind kind_of_id(std::int32_t id) const noexcept {
        return in_range(id) ? entries_[static_cast<std::size_t>(id)].kind : token_kind::unused;
    }

    // Encoding -----------------------------------------------------------------------------------------------------------

    /// Finds added tokens in `text`, leftmost then longest; what lies between goes to `on_part`.
    template <class OnPart>
    [[nodiscard]] static status split_added(std::string_view text, const added_set& added, std::vector<std::int32_t>& out,
                                            OnPart on_part) {
        std::size_t done = 0;
        for (std::size_t i = 0; i < text.size() && !added.ids.empty();) {
            std::size_t length = 0;
            if (added.starts[static_cast<unsigned char>(text[i])]) length = match_added(text.substr(i), added);
            if (length == 0) {
                ++i;
                continue;
            }
            if (i > done) FRUGAL_TRY(on_part(text.substr(done, i - done)));
            out.push_back(added.ids.find(std::string(text.substr(i, length)))->second);
            done = i += length;
        }
        if (done < text.size()) FRUGAL_TRY(on_part(text.substr(done)));
        return {};
    }
    [[nodiscard]] static std::size_t match_added(std::string_view text, const added_set& added) {
        for (const auto length : added.lengths)
            if (length <= text.size() && added.ids.contains(std::string(text.substr(0, length)))) return length;
        return 0;
    }

    [[nodiscard]] status encode_plain(std::string_view text, bool parse_special, byte_pair_merger::scratch& work,
                                      std::vector<std::int32_t>& out) const {
        std::string normal;
        if (normalize_) {
            FRUGAL_TRY_ASSIGN(normal, nfc(text));
            text = normal;
        }
        const auto encode_part = [&](std::string_view part) {
            return pre_tokenizer_->split(part, [&](std::string_view piece) {
                if (whole_pieces_first_)
                    if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
                        out.push_back(whole->second);
                        return;
                    }
                merger_.encode(piece, work, out);
            });
        };
        if (!parse_special) return encode_part(text);
        return split_added(text, normalized_added_, out, encode_part);
    }

    // Building -----------------------------------------------------------------------------------------------------------

    /// Every key of a GGUF file's tokenizer is read, without effect here, or false; another is an error with its name.
    [[nodiscard]] static status check_keys(const gguf_file& file);
    [[nodiscard]] static token_kind kind_of(std::int64_t gguf_type) noexcept {
        switch (gguf_type) {
            case gguf_control: return token_kind::special;
            case gguf_user_defined: return token_kind::added;
            case gguf_unused: return token_kind::unused;
            default: return token_kind::normal;
        }
    }
    [[nodiscard]] static result<tokenizer_source::merge> split_merge(std::string_view line, const std::string& name) {
        const auto space = line.find(' ');
        if (space == std::string_view::npos)
            return fail(errc::malformed_file, name, ": merge ", printable(line), " is not two tokens with a space between");
        return tokenizer_source::merge{line.substr(0, space), line.substr(space + 1)};
    }
    static void mark_unmarked_tags(tokenizer_source& source) {
        const auto is_tag = [](const tokenizer_source::token& token) {
            return token.kind == token_kind::normal && token.text.size() > 2 && token.text.front() == '<' &&
                   token.text.back() == '>';
        };
        std::unordered_set<std::string> made;
        for (const auto& [left, right] : source.merges)
            if (left.starts_with('<') && right.ends_with('>')) made.insert(concat(left, right));
        for (auto& token : source.tokens)
            if (is_tag(token) && !made.contains(std::string(token.text))) token.kind = token_kind::added;
    }

    [[nodiscard]] status store_tokens(const tokenizer_source& source);
    [[nodiscard]] static status store_added(added_set& set, std::string text, std::int32_t id, const std::string& name);

    std::vector<char> bytes_;  // not a string: its address survives a move
    std::vector<entry> entries_;
    std::unordered_map<std::string_view, std::int32_t> ids_;           // views into bytes_
    std::unordered_map<std::string_view, std::int32_t> whole_pieces_;  // views into bytes_; only if whole_pieces_first_
    byte_pair_merger merger_;
    added_set raw_added_, normalized_added_;
    std::optional<pre_tokenizer> pre_tokenizer_;
    std::vector<std::int32_t> end_ids_;
    std::optional<std::int32_t> first_id_;
    bool normalize_ = true, whole_pieces_first_ = false;
};

/// Turns ids into text as they are generated. What comes out is valid UTF-8: a character that is still incomplete is held back,
/// and what can no longer become one comes out as U+FFFD. All outputs together are `repair_utf8(decode(ids))`.
class FRUGAL_FLAGGED stream_decoder {
public:
    /// `source` must outlive the decoder.
    explicit stream_decoder(const tokenizer& source, bool skip_special = false) noexcept
        : source_(&source), skip_special_(skip_special) {}

    /// The text that `id` completes; may be empty.
    [[nodiscard]] std::string push(std::int32_t id) {
        if (skip_special_ && source_->is_special(id)) return {};
        held_ += source_->text_of(id);
        std::string out;
        std::string_view rest = held_;
        while (!rest.empty()) {
            const auto next = next_utf8(rest);
            if (next.what == utf8_sequence::kind::cut_off) break;
            if (next.what == utf8_sequence::kind::valid)
                out += rest.substr(0, next.length);
            else
                out += replacement_character;
            rest.remove_prefix(next.length);
        }
        held_.erase(0, held_.size() - rest.size());
        return out;
    }
    /// What is still held back, at the end of the text; the decoder can then be used anew.
    [[nodiscard]] std::string finish() {
        std::string out = repair_utf8(held_);
        held_.clear();
        return out;
    }

private:
    const tokenizer* source_;
    bool skip_special_;
    std::string held_;  // at most three bytes between calls
};

}  // namespace io

FRUGAL_NAMESPACE_END

#include "frugal/io/tokenizer-inl.hpp"
