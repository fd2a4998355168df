// fails TWO_PACKERS: frugal: two readers pack the same image; give every packed image of a layer a number of its own
// fails TWO_PACKERS_OF_TWO_ENUMS: frugal: two readers pack the same image
// fails UNDECLARED_BUFFER: frugal: a reader names a buffer that its table does not declare; add it to buffers<...>
// fails UNDECLARED_BY_HOST: frugal: a reader names a buffer that its table does not declare
// fails UNREAD_BUFFER: frugal: no reader reads one of the table's buffers; what nobody reads must not be loaded
// fails BUFFER_TWICE: frugal: a reader table declares a buffer twice
// fails TOKEN_DEPENDENT: frugal: an image that depends on the token cannot be declared resident; keep it in a reuse::image_cache
// fails OTHER_READER: frugal: this reader is not in the layer's reader table; declare it there, so that what it reads is loaded
// fails READS_MORE: frugal: this reader is not in the layer's reader table
// fails PACKS_NOTHING: frugal: a packing reader reads at least one buffer: packs<image, buffer...>
// fails READS_NOTHING: frugal: a host reader reads at least one buffer: reads_on_host<mode, buffer...>
// fails BARE_BUFFERS: frugal: write reader_table<buffers<...>, packs<image, buffer...>..., reads_on_host<mode, buffer...>...>
// fails NOT_A_READER: frugal: write reader_table<buffers<...>, packs<image, buffer...>..., reads_on_host<mode, buffer...>...>
// fails NUMBER_64: frugal: images and modes are numbered from 0 to 63
// fails NEGATIVE: frugal: images and modes are numbered from 0 to 63
// fails NOT_A_NUMBER: frugal: images and modes are enumerators or integers: packs<image::qkv, buffer::q>
//
// A06 two readers of one image key, A16 (READS_MORE) a KV-shared layer's reader that would read wk and wv, and A21 routed experts
// do not compile; nor does a reader outside of the table.
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/reader_table.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;

enum class image { qkv, o };
enum class ffn_image { gate_up };
enum class buffer { q, k, v, o };
enum class mode { host_matmul };

using pack_o = reuse::packs<image::o, buffer::o>;
using on_host = reuse::reads_on_host<mode::host_matmul, buffer::q, buffer::o>;

#if defined(UNDECLARED_BUFFER)
using pack_qkv = reuse::packs<image::qkv, buffer::q, buffer::k>;
#else
using pack_qkv = reuse::packs<image::qkv, buffer::q>;
#endif

#if defined(UNREAD_BUFFER)
using declared = reuse::buffers<buffer::q, buffer::o, buffer::v>;
#elif defined(BUFFER_TWICE)
using declared = reuse::buffers<buffer::q, buffer::o, buffer::q>;
#elif defined(BARE_BUFFERS)
using declared = pack_o;
#else
using declared = reuse::buffers<buffer::q, buffer::o>;
#endif

#if defined(TWO_PACKERS)
using extra = reuse::packs<image::o, buffer::q>;
#elif defined(TWO_PACKERS_OF_TWO_ENUMS)
using extra = reuse::packs<ffn_image::gate_up, buffer::q>;  // number 0, as image::qkv
#elif defined(UNDECLARED_BY_HOST)
using extra = reuse::reads_on_host<mode::host_matmul, buffer::v>;
#elif defined(TOKEN_DEPENDENT)
using extra = reuse::packs<reuse::depends_on_token{3}, buffer::q>;
#elif defined(PACKS_NOTHING)
using extra = reuse::packs<7>;
#elif defined(READS_NOTHING)
using extra = reuse::reads_on_host<7>;
#elif defined(NOT_A_READER)
using extra = declared;
#elif defined(NUMBER_64)
using extra = reuse::packs<64, buffer::q>;
#elif defined(NEGATIVE)
using extra = reuse::reads_on_host<-1, buffer::q>;
#elif defined(NOT_A_NUMBER)
using extra = reuse::packs<&fg::error::message, buffer::q>;
#else
using extra = reuse::packs<63, buffer::q>;
#endif

using table = reuse::reader_table<declared, pack_qkv, pack_o, on_host, extra>;
static_assert(table::size == 2);

struct content {
    void poison() {}
};
struct packed {
    std::size_t bytes() const { return 0; }
};
#if defined(OTHER_READER)
using reader = reuse::packs<image::qkv, buffer::o>;
#elif defined(READS_MORE)
using reader = reuse::packs<image::qkv, buffer::q, buffer::k, buffer::v>;
#else
using reader = pack_qkv;
#endif
fg::status pack(reuse::host_buffers<table, content>& host, reuse::lease<packed>& step) {
    return host.run<reader>(step, [](const auto&...) -> fg::result<packed> { return packed{}; });
}
