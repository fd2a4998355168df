// fails NO_MATRIX: frugal: a product has at least one weight matrix: product<&weights::q>
// fails NO_PRODUCT: frugal: a product_list has at least one product
// fails MATRIX_OF_TWO_PRODUCTS: frugal: a reader table declares a buffer twice
// fails NOT_LISTED: frugal: this reader is not in the layer's reader table
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/products.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;

struct weights {
    fg::quant::weight_view gate, up, down;
};
#if defined(NO_MATRIX)
using down = reuse::product<>;
#elif defined(MATRIX_OF_TWO_PRODUCTS)
using down = reuse::product<&weights::down, &weights::up>;
#else
using down = reuse::product<&weights::down>;
#endif
using gate_up = reuse::product<&weights::gate, &weights::up>;
#if defined(NO_PRODUCT)
using products = reuse::product_list<weights>;
#else
using products = reuse::product_list<weights, gate_up, down>;
#endif
static_assert(products::table::size == 3);

#if defined(NOT_LISTED)
using multiplied = reuse::product<&weights::gate>;
#else
using multiplied = gate_up;
#endif
struct content {
    void poison() {}
};
struct packed {
    std::size_t bytes() const { return 0; }
};
fg::status pack(reuse::host_buffers<products::table, content>& host, reuse::lease<packed>& step) {
    return host.run<products::packer<multiplied>>(step, [](const auto&...) -> fg::result<packed> { return packed{}; });
}
