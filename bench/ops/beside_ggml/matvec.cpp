// The product with one token: weights come from memory, each byte of the file's format once.
#include "operators.hpp"
#include "products.hpp"

namespace bench {

fg::status measure_matvec(contests& all) {
    return for_each_product_format([&]<class Format>(fg::type_tag<Format>) -> fg::status {
        const weights<Format> w(product_rows, product_cols, 1, 1);
        for (std::size_t threads = 1; threads <= all.most_threads(); ++threads) {
            product what{product_rows, product_cols, 1, copies_beyond_cache(w.view().bytes()), threads};
            what.x = normal(product_cols, 2);
            contest out{fg::concat("matvec.", Format::name), "matvec", std::string(Format::name),
                        fg::concat(product_rows, 'x', product_cols)};
            out.for_each_isa = out.by_threads = true;
            out.checked = sample(product_rows, 31);
            out.bound = bound::reading;
            out.cost = {static_cast<double>(w.view().bytes()), 2.0 * product_rows * product_cols};
            FRUGAL_TRY(hold_product(all, what, w, std::move(out)));
        }
        return {};
    });
}

}  // namespace bench
