#pragma once
/// The weights of a model, bound by role: big matrices as views into the file, small vectors as f32 copies.
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "frugal/attention/full/full.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// One decoder layer. Which members are filled follows from the specification and the layer's kind.
struct FRUGAL_FLAGGED layer_weights {
    attention::gdn_weights gdn;        ///< layers of kind gdn
    attention::qsa_weights attention;  ///< layers of kind attention; the indexer's members only for QSA
    layer::dense_ffn_weights dense;
    layer::moe_weights moe;
    std::span<const float> attention_norm, ffn_norm;                         ///< plain residual
    layer::hyper_connection_weights attention_hyper_connection, ffn_hyper_connection;  ///< hyper-connections
};

/// Weights of a whole model. Views point into the file's mapping, which must outlive them.
struct FRUGAL_FLAGGED weights {
    quant::weight_view embedding, head;  ///< `head` equals `embedding` in tied models
    std::span<const float> output_norm;                   ///< plain residual
    layer::hyper_connection_weights output_hyper_connection;  ///< hyper-connections; no injection
    std::vector<layer_weights> layers;
    std::vector<layer::ngram_weights> ngrams;  ///< one for each of config::ngrams

    /// Takes over a small vector and returns where it lives.
    std::span<const float> keep(std::vector<float> values) {
        kept_.push_back(std::move(values));
        return kept_.back();
    }

private:
    std::vector<std::vector<float>> kept_;  // moving an inner vector does not move its elements
};

}  // namespace model

FRUGAL_NAMESPACE_END
