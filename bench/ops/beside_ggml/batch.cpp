// How the product's speed grows with the tokens that share a pass over the weights, and with threads.
#include "operators.hpp"
#include "products.hpp"

namespace bench {

fg::status measure_batch(contests& all) {
    using format = fg::quant::q4_k;
    const weights<format> w(product_rows, product_cols, 1, 1);
    for (std::size_t tokens = 1; tokens <= 16; tokens *= 2)
        for (std::size_t threads = 1; threads <= all.most_threads(); ++threads) {
            product what{product_rows, product_cols, tokens, copies_beyond_cache(w.view().bytes()), threads};
            what.x = normal(tokens * product_cols, 2);
            contest out{fg::concat("batch.", format::name, '.', tokens), "batch", std::string(format::name),
                        fg::concat(product_rows, 'x', product_cols, 'x', tokens)};
            out.by_threads = true;
            out.checked = sample(tokens * product_rows, 97);
            out.bound = bound::reading;
            out.cost = {static_cast<double>(w.view().bytes()), 2.0 * product_rows * product_cols * static_cast<double>(tokens)};
            FRUGAL_TRY(hold_product(all, what, w, std::move(out)));
        }
    return {};
}

}  // namespace bench
