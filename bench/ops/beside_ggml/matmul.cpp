// The product with 512 tokens: bound by arithmetic.
#include "operators.hpp"
#include "products.hpp"

namespace bench {

fg::status measure_matmul(contests& all) {
    return for_each_product_format([&]<class Format>(fg::type_tag<Format>) -> fg::status {
        constexpr std::size_t tokens = 512;
        const weights<Format> w(product_rows, product_cols, 1, 1);
        product what{product_rows, product_cols, tokens, 1, 1};
        what.x = normal(tokens * product_cols, 2);
        contest out{fg::concat("matmul.", Format::name), "matmul", std::string(Format::name),
                    fg::concat(product_rows, 'x', product_cols, 'x', tokens)};
        out.for_each_isa = true;
        out.checked = sample(tokens * product_rows, 13001);
        out.bound = fg::quant::integer_dot_format<Format> ? bound::int8 : bound::f32;
        out.cost = {static_cast<double>(w.view().bytes()), 2.0 * product_rows * product_cols * tokens};
        return hold_product(all, what, w, std::move(out));
    });
}

}  // namespace bench
