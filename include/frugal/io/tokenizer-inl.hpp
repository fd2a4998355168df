#pragma once
/// Definitions of io/tokenizer.hpp: building the tables, and reading tokenizer.json.
#include "frugal/io/tokenizer.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

inline status tokenizer::store_added(added_set& set, std::string text, std::int32_t id, const std::string& name) {
    if (text.empty()) return fail(errc::malformed_file, name, ": added token ", id, " has no text");
    set.starts[static_cast<unsigned char>(text.front())] = true;
    set.lengths.push_back(text.size());
    if (!set.ids.emplace(std::move(text), id).second)
        return fail(errc::malformed_file, name, ": added token ", id, " has the text of another after normalisation");
    return {};
}

inline status tokenizer::check_keys(const gguf_file& file) {
    // Read, or of use to others: ids that stand for something, what other kinds of vocabulary have.
    constexpr std::string_view known[] = {"model",
                                          "pre",
                                          "tokens",
                                          "token_type",
                                          "token_type_count",
                                          "scores",
                                          "merges",
                                          "add_bos_token",
                                          "remove_extra_whitespaces",
                                          "precompiled_charsmap"};
    constexpr std::string_view refused[] = {"add_eos_token", "add_sep_token", "add_space_prefix", "normalizer.lowercase",
                                            "normalizer.strip_accents"};
    constexpr std::string_view prefix = "tokenizer.ggml.";
    const auto within = [](const auto& list, std::string_view key) {
        return std::find(std::begin(list), std::end(list), key) != std::end(list);
    };
    for (const gguf_entry& entry : file.metadata()) {
        const std::string_view name = entry.key;
        if (!name.starts_with(prefix)) continue;
        const std::string_view key = name.substr(prefix.size());
        if (within(known, key) || key.ends_with("_token_id")) continue;
        if (!within(refused, key))
            return fail(errc::unsupported, file.name(), ": metadata key ", printable(name),
                        " is not known here; what it says could change tokens");
        FRUGAL_TRY_ASSIGN(const bool wanted, file.boolean(name));
        if (wanted)
            return fail(errc::unsupported, file.name(), ": metadata key ", printable(name), " is true; only false is followed");
    }
    return {};
}

inline status tokenizer::store_tokens(const tokenizer_source& source) {
    std::size_t total = 0;
    for (const auto& token : source.tokens) total += token.text.size();
    bytes_.reserve(total);  // the byte-level spelling is never shorter than what it spells, so views stay put
    entries_.reserve(source.tokens.size());
    for (std::size_t i = 0; i < source.tokens.size(); ++i) {
        const auto& token = source.tokens[i];
        const auto id = static_cast<std::int32_t>(i);
        if (token.text.size() > (std::numeric_limits<std::uint32_t>::max)())
            return fail(errc::malformed_file, source.name, ": token ", i, " is too long");
        if (valid_utf8_prefix(token.text) != token.text.size())
            return fail(errc::malformed_file, source.name, ": token ", i, " ", printable(token.text), " is not valid UTF-8");
        entry placed{bytes_.size(), 0, token.kind};
        if (token.kind == token_kind::normal) {
            // A text outside the byte-level alphabet is no product of merges; it can only be decoded, and reads as it stands.
            const std::string plain = unspell_bytes(token.text).value_or(std::string(token.text));
            bytes_.insert(bytes_.end(), plain.begin(), plain.end());
        } else if (token.kind != token_kind::unused) {
            bytes_.insert(bytes_.end(), token.text.begin(), token.text.end());
        }
        placed.length = static_cast<std::uint32_t>(bytes_.size() - placed.begin);
        entries_.push_back(placed);
        if (token.kind == token_kind::added || token.kind == token_kind::special) {
            std::string text{token.text};
            if (token.normalized && normalize_) {
                FRUGAL_TRY_ASSIGN(text, nfc(text));
            }
            FRUGAL_TRY(store_added(token.normalized ? normalized_added_ : raw_added_, std::move(text), id, source.name));
        }
    }
    for (auto* set : {&raw_added_, &normalized_added_}) {
        auto& lengths = set->lengths;
        std::sort(lengths.begin(), lengths.end(), [](std::size_t a, std::size_t b) { return a > b; });
        lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    }
    ids_.reserve(entries_.size());
    for (const bool added : {true, false})
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            const auto id = static_cast<std::int32_t>(i);
            if (entries_[i].kind != token_kind::unused && is_added(id) == added) ids_.emplace(text_of(id), id);
        }
    return {};
}

inline result<tokenizer> tokenizer::build(const tokenizer_source& source) {
    const std::string& name = source.name;
    if (source.tokens.size() > static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)()))
        return fail(errc::malformed_file, name, ": ", source.tokens.size(), " tokens are too many");
    tokenizer out;
    out.normalize_ = source.normalize;
    out.whole_pieces_first_ = source.whole_pieces_first;
    FRUGAL_TRY_ASSIGN(out.pre_tokenizer_, pre_tokenizer::compile(source.pattern));

    std::unordered_map<std::string_view, std::int32_t> spelled;  // ids by the source's spelling
    spelled.reserve(source.tokens.size());
    for (std::size_t i = 0; i < source.tokens.size(); ++i) {
        const auto& token = source.tokens[i];
        if (token.kind == token_kind::unused) continue;
        const auto [place, fresh] = spelled.emplace(token.text, static_cast<std::int32_t>(i));
        if (!fresh)
            return fail(errc::malformed_file, name, ": tokens ", place->second, " and ", i, " are both ", printable(token.text));
    }
    FRUGAL_TRY(out.store_tokens(source));
    if (out.whole_pieces_first_)
        for (const auto& [text, id] : spelled)
            if (out.entries_[static_cast<std::size_t>(id)].kind == token_kind::normal && unspell_bytes(text))
                out.whole_pieces_.emplace(out.text_of(id), id);

    for (int byte = 0; byte < 256; ++byte) {
        const auto found = spelled.find(spell_byte(static_cast<std::uint8_t>(byte)));
        if (found == spelled.end()) return fail(errc::malformed_file, name, ": no token for byte ", byte);
        out.merger_.byte_ids[static_cast<std::size_t>(byte)] = found->second;
    }
    if (source.merges.size() >= byte_pair_merger::no_rank)
        return fail(errc::malformed_file, name, ": ", source.merges.size(), " merges are too many");
    out.merger_.reserve(source.merges.size());
    std::string joined;
    for (std::size_t rank = 0; rank < source.merges.size(); ++rank) {
        const auto& [left, right] = source.merges[rank];
        joined.assign(left).append(right);
        const auto l = spelled.find(left), r = spelled.find(right), both = spelled.find(joined);
        if (left.empty() || right.empty() || l == spelled.end() || r == spelled.end() || both == spelled.end())
            return fail(
                errc::malformed_file, name, ": merge ", rank, " of ", printable(left), " and ", printable(right),
                left.empty() || right.empty() ? " has an empty part" : " names a token that the vocabulary does not hold");
        out.merger_.add(l->second, r->second, static_cast<std::uint32_t>(rank), both->second);
    }

    out.end_ids_ = source.end_ids;
    for (const std::string_view text : {"<|endoftext|>", "<|im_end|>"})
        if (const auto id = out.id_of(text); id && out.is_added(*id)) out.end_ids_.push_back(*id);
    out.also_end_at({});  // in order, each once
    for (const auto id : out.end_ids_)
        if (!out.in_range(id)) return fail(errc::malformed_file, name, ": end-of-text id ", id, " is not in the vocabulary");
    out.first_id_ = source.first_id;
    if (out.first_id_ && !out.in_range(*out.first_id_))
        return fail(errc::malformed_file, name, ": first id ", *out.first_id_, " is not in the vocabulary");
    return out;
}

namespace detail {

/// Walks a parsed tokenizer.json. Views in `source` point into the tree.
class FRUGAL_FLAGGED tokenizer_json_reader {
public:
    using json = nlohmann::json;

    tokenizer_json_reader(const json& root, std::size_t file_bytes, const std::string& name) : root_(root), most_id_(file_bytes) {
        source.name = name;
    }

    tokenizer_source source;

    [[nodiscard]] status read() {
        if (!root_.is_object()) return malformed("the top of the file is not an object");
        FRUGAL_TRY(read_model());
        FRUGAL_TRY(read_added_tokens());
        FRUGAL_TRY(read_normalizer());
        FRUGAL_TRY(read_pre_tokenizer());
        return check_post_processor();
    }

private:
    template <class... Piece>
    [[nodiscard]] error malformed(const Piece&... piece) const {
        return fail(errc::malformed_file, source.name, ": ", piece...);
    }
    template <class... Piece>
    [[nodiscard]] error unsupported(const Piece&... piece) const {
        return fail(errc::unsupported, source.name, ": ", piece...);
    }

    /// The member, or null where it is absent or JSON null.
    [[nodiscard]] static const json* member(const json& object, const char* key) {
        if (!object.is_object()) return nullptr;
        const auto found = object.find(key);
        return found == object.end() || found->is_null() ? nullptr : &*found;
    }
    [[nodiscard]] static std::string_view text_member(const json& object, const char* key) {
        const auto* value = member(object, key);
        const auto* text = value == nullptr ? nullptr : value->get_ptr<const std::string*>();
        return text == nullptr ? std::string_view{} : std::string_view(*text);
    }
    [[nodiscard]] static bool flag(const json& object, const char* key, bool fallback = false) {
        const auto* value = member(object, key);
        const auto* truth = value == nullptr ? nullptr : value->get_ptr<const bool*>();
        return truth == nullptr ? fallback : *truth;
    }

    [[nodiscard]] result<std::size_t> id_from(const json* value, std::string_view text) const {
        const auto* number = value == nullptr ? nullptr : value->get_ptr<const json::number_unsigned_t*>();
        if (number == nullptr) return malformed("token ", printable(text), " has no id");
        // A table is made by id, and must not outgrow the file.
        if (*number > most_id_)
            return malformed("token ", printable(text), " has id ", *number, ", far beyond the number of tokens");
        return static_cast<std::size_t>(*number);
    }
    [[nodiscard]] tokenizer_source::token& token_at(std::size_t id) {
        if (id >= source.tokens.size()) source.tokens.resize(id + 1);
        return source.tokens[id];
    }

    [[nodiscard]] status read_model() {
        const auto* model = member(root_, "model");
        if (model == nullptr || !model->is_object()) return malformed("there is no object 'model'");
        // Old files leave the type out.
        if (const auto type = text_member(*model, "type"); !type.empty() && type != "BPE")
            return unsupported("model type ", printable(type), "; only 'BPE' can be read");
        if (member(*model, "dropout") != nullptr) return unsupported("model setting 'dropout'");
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!text_member(*model, key).empty()) return unsupported("model setting '", key, "'");
        if (flag(*model, "byte_fallback")) return unsupported("model setting 'byte_fallback'");
        source.whole_pieces_first = flag(*model, "ignore_merges");

        const auto* vocabulary = member(*model, "vocab");
        if (vocabulary == nullptr || !vocabulary->is_object()) return malformed("there is no object 'model.vocab'");
        for (auto item = vocabulary->begin(); item != vocabulary->end(); ++item) {
            FRUGAL_TRY_ASSIGN(const std::size_t id, id_from(&*item, item.key()));
            auto& token = token_at(id);
            if (token.kind != token_kind::unused)
                return malformed("tokens ", printable(token.text), " and ", printable(item.key()), " have the same id ", id);
            token = {item.key(), token_kind::normal, false};
        }
        const auto* merges = member(*model, "merges");
        if (merges == nullptr || !merges->is_array()) return malformed("there is no array 'model.merges'");
        source.merges.reserve(merges->size());
        for (const auto& merge : *merges) FRUGAL_TRY(read_merge(merge));
        return {};
    }

    /// A merge is "left right" or, in newer files, ["left", "right"].
    [[nodiscard]] status read_merge(const json& merge) {
        if (const auto* line = merge.get_ptr<const std::string*>()) {
            const auto space = line->find(' ');
            if (space == std::string::npos)
                return malformed("merge ", printable(*line), " is not two tokens with a space between");
            const std::string_view view = *line;
            source.merges.push_back({view.substr(0, space), view.substr(space + 1)});
            return {};
        }
        const bool pair = merge.is_array() && merge.size() == 2;
        const auto* left = pair ? merge[0].get_ptr<const std::string*>() : nullptr;
        const auto* right = pair ? merge[1].get_ptr<const std::string*>() : nullptr;
        if (left == nullptr || right == nullptr) return malformed("merge ", source.merges.size(), " is not a pair of tokens");
        source.merges.push_back({*left, *right});
        return {};
    }

    [[nodiscard]] status read_added_tokens() {
        const auto* added = member(root_, "added_tokens");
        if (added == nullptr) return {};
        if (!added->is_array()) return malformed("'added_tokens' is not an array");
        for (const auto& token : *added) {
            const auto text = text_member(token, "content");
            if (text.empty()) return malformed("an added token has no content");
            for (const char* key : {"single_word", "lstrip", "rstrip"})
                if (flag(token, key)) return unsupported("added token ", printable(text), " has ", key);
            FRUGAL_TRY_ASSIGN(const std::size_t id, id_from(member(token, "id"), text));
            auto& place = token_at(id);
            if (place.kind != token_kind::unused && (place.kind != token_kind::normal || place.text != text))
                return malformed("added token ", printable(text), " has the id ", id, " of ", printable(place.text));
            const bool special = flag(token, "special");
            place = {text, special ? token_kind::special : token_kind::added, flag(token, "normalized", !special)};
        }
        return {};
    }

    [[nodiscard]] status read_normalizer() {
        const auto* normalizer = member(root_, "normalizer");
        source.normalize = normalizer != nullptr;
        if (normalizer == nullptr) return {};
        const auto* chain = member(*normalizer, "normalizers");
        if (text_member(*normalizer, "type") == "Sequence" && chain != nullptr && chain->is_array() && chain->size() <= 1) {
            if (chain->empty()) source.normalize = false;
            if (chain->empty()) return {};
            normalizer = &(*chain)[0];
        }
        if (const auto type = text_member(*normalizer, "type"); type != "NFC")
            return unsupported("normalizer ", printable(type), "; only 'NFC' is known");
        return {};
    }

    [[nodiscard]] status read_pre_tokenizer() {
        const auto* pre = member(root_, "pre_tokenizer");
        const auto* chain = pre == nullptr ? nullptr : member(*pre, "pretokenizers");
        if (pre == nullptr || text_member(*pre, "type") != "Sequence" || chain == nullptr || !chain->is_array() ||
            chain->size() != 2)
            return unsupported("the pre-tokenizer is not a Sequence of Split and ByteLevel");
        const json &split = (*chain)[0], &bytes = (*chain)[1];
        if (text_member(split, "type") != "Split" || text_member(split, "behavior") != "Isolated" || flag(split, "invert"))
            return unsupported("the first pre-tokenizer is not a Split with behavior Isolated");
        const auto* pattern = member(split, "pattern");
        if (pattern == nullptr || text_member(*pattern, "Regex").empty())
            return unsupported("the Split has no regular expression");
        source.pattern = text_member(*pattern, "Regex");
        if (text_member(bytes, "type") != "ByteLevel" || flag(bytes, "add_prefix_space", true) || flag(bytes, "use_regex", true))
            return unsupported("the second pre-tokenizer is not a ByteLevel without prefix space and regular expression");
        return {};
    }

    /// Only post-processors that add no token.
    [[nodiscard]] status check_post_processor() const {
        const auto* post = member(root_, "post_processor");
        if (post == nullptr || text_member(*post, "type") == "ByteLevel") return {};
        const auto* single = member(*post, "single");
        if (text_member(*post, "type") != "TemplateProcessing" || single == nullptr || !single->is_array())
            return unsupported("post-processor ", printable(text_member(*post, "type")));
        for (const auto& piece : *single)
            if (member(piece, "Sequence") == nullptr) return unsupported("a post-processor that adds tokens");
        return {};
    }

    const json& root_;
    std::size_t most_id_;
};

/// The text of a token in tokenizer_config.json: a string, or an object with `content`.
[[nodiscard]] FRUGAL_FLAGGED inline std::string_view configured_token(const nlohmann::json& config, const char* key) {
    if (!config.is_object()) return {};
    auto found = config.find(key);
    if (found == config.end()) return {};
    const nlohmann::json* value = &*found;
    if (value->is_object()) {
        found = value->find("content");
        if (found == value->end()) return {};
        value = &*found;
    }
    const auto* text = value->get_ptr<const std::string*>();
    return text == nullptr ? std::string_view{} : std::string_view(*text);
}

/// A flag of tokenizer_config.json; false where it is not there.
[[nodiscard]] inline result<bool> configured_flag(const nlohmann::json& config, const char* key) {
    const auto found = config.is_object() ? config.find(key) : config.end();
    if (found == config.end() || found->is_null()) return false;
    if (!found->is_boolean()) return fail(errc::malformed_file, "tokenizer_config.json: \"", key, "\" is not true or false");
    return found->get<bool>();
}

}  // namespace detail

inline result<tokenizer> tokenizer::from_tokenizer_json(std::string_view text, std::string_view config, const std::string& name) {
    FRUGAL_TRY_ASSIGN(const nlohmann::json root, parse_json(text, name));
    detail::tokenizer_json_reader reader(root, text.size(), name);
    FRUGAL_TRY(reader.read());
    auto& source = reader.source;
    if (!config.empty()) {
        FRUGAL_TRY_ASSIGN(const nlohmann::json settings, parse_json(config, "tokenizer_config.json"));
        const auto id_named = [&](std::string_view token, const char* what) -> result<std::int32_t> {
            for (std::size_t id = 0; id < source.tokens.size(); ++id)
                if (source.tokens[id].kind != token_kind::unused && source.tokens[id].text == token)
                    return static_cast<std::int32_t>(id);
            return fail(errc::malformed_file, name, ": the vocabulary does not hold the ", what, " token ", printable(token));
        };
        if (const auto end = detail::configured_token(settings, "eos_token"); !end.empty()) {
            FRUGAL_TRY_ASSIGN(const std::int32_t id, id_named(end, "end-of-text"));
            source.end_ids.push_back(id);
        }
        FRUGAL_TRY_ASSIGN(const bool prepend, detail::configured_flag(settings, "add_bos_token"));
        // Without a token there is none to put in front, as in transformers.
        if (const auto first = detail::configured_token(settings, "bos_token"); prepend && !first.empty()) {
            FRUGAL_TRY_ASSIGN(source.first_id, id_named(first, "first"));
        }
        for (const char* key : {"add_eos_token", "add_prefix_space", "split_special_tokens", "do_lower_case"}) {
            FRUGAL_TRY_ASSIGN(const bool wanted, detail::configured_flag(settings, key));
            if (wanted) return fail(errc::unsupported, "tokenizer_config.json: \"", key, "\" is true; only false is followed");
        }
    }
    return build(source);
}

}  // namespace io

FRUGAL_NAMESPACE_END
