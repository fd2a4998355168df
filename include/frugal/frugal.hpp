#pragma once
/// Everything that needs no more than the standard library, layer by layer from the top; each header also stands alone and
/// compiles faster that way. Not here: io/ and the loaders of model/ that read files, and the Eigen executor.

// 8 model: specifications and forward passes
#include "frugal/model/bind.hpp"
#include "frugal/model/compiled.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/fingerprint.hpp"
#include "frugal/model/names.hpp"
#include "frugal/model/parts.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/state.hpp"
#include "frugal/model/tensor_source.hpp"
#include "frugal/model/token_batch.hpp"
#include "frugal/model/transformer.hpp"
#include "frugal/model/weight_store.hpp"
#include "frugal/model/weights.hpp"

// 7 layer: decoder blocks
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/experts.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/layer/residual.hpp"

// 6 attention: the variants, their states and caches
#include "frugal/attention/full/full.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/attention/value_state.hpp"
#include "frugal/attention/variant.hpp"

// the policies in one bundle
#include "frugal/policies.hpp"

// 5 reuse: what is not loaded or built twice
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/input_sets.hpp"
#include "frugal/reuse/engine/inputs.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/qsa_layouts.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/inputs/shared_inputs.hpp"
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/image_cache.hpp"
#include "frugal/reuse/weights/image_products.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/weights/reader_table.hpp"
#include "frugal/reuse/weights/residency.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"

// 4 ops: one folder an operator
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/matmul/image_matmul.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/ops/ngram/ngram.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/ops/sampling/penalties.hpp"
#include "frugal/ops/sampling/sampling.hpp"

// 3 device: the CPU as a target
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "frugal/device/cpu/grain.hpp"
#include "frugal/device/cpu/pack_panels.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/device/cpu/topology.hpp"
#include "frugal/device/host_side.hpp"

// 2 quant: formats and codecs
#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/q4nx.hpp"
#include "frugal/quant/q4nx/mxfp4_tile.hpp"
#include "frugal/quant/q4nx/q8nx.hpp"
#include "frugal/quant/q4nx/row_order.hpp"

// 1 tensor, 0 core
#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/core/version.hpp"
#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"
