#pragma once
/// A file mapped read-only into memory (POSIX).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// How a part of a mapping is about to be read.
enum class access : std::uint8_t {
    normal,      ///< undo earlier advice
    sequential,  ///< once, from front to back
    random,      ///< single rows: no read-ahead
    soon,        ///< start reading it in now
    done,        ///< its pages may be dropped; a later read fetches them again
};

/// The bytes of a regular file. Move-only; a move keeps the address of the bytes.
/// Someone who shortens the file while it is mapped makes reads beyond its new end fatal (SIGBUS): that is how mmap works.
class FRUGAL_FLAGGED mapped_file {
public:
    mapped_file() noexcept = default;
    mapped_file(const mapped_file&) = delete;
    mapped_file& operator=(const mapped_file&) = delete;
    mapped_file(mapped_file&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    mapped_file& operator=(mapped_file&& other) noexcept {
        if (this != &other) {
            close();
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~mapped_file() { close(); }

    /// Errors: not_found (no such file), malformed_file (empty), invalid_argument (a directory or device), io. All name the path.
    [[nodiscard]] static result<mapped_file> open(const std::string& path) {
        if (path.find('\0') != std::string::npos) return fail(errc::invalid_argument, "the path contains a NUL byte");
        // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
        const int descriptor = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
        if (descriptor < 0) {
            const int why = errno;
            return fail(why == ENOENT || why == ENOTDIR ? errc::not_found : errc::io, "cannot open ", path, ": ",
                        std::strerror(why));
        }
        auto out = map(descriptor, path);
        ::close(descriptor);
        return out;
    }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

    /// Tells the system how `part` of a mapping will be read. Only a hint: it never changes what is read, and failure is ignored.
    static void advise(std::span<const std::byte> part, access how) noexcept {
        if (part.empty()) return;
        const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
        const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
        const std::uintptr_t aligned = begin / page * page;
        auto* address = const_cast<std::byte*>(part.data()) - (begin - aligned);
        static_cast<void>(::madvise(address, part.size() + (begin - aligned), advice(how)));
    }
    void advise(access how) const noexcept { advise(bytes(), how); }

private:
    template <class Call>
    [[nodiscard]] static int retry(Call call) {
        int value = -1;
        do value = call();
        while (value < 0 && errno == EINTR);
        return value;
    }
    [[nodiscard]] static int advice(access how) noexcept {
        switch (how) {
            case access::normal: return MADV_NORMAL;
            case access::sequential: return MADV_SEQUENTIAL;
            case access::random: return MADV_RANDOM;
            case access::soon: return MADV_WILLNEED;
            case access::done: return MADV_DONTNEED;
        }
        return MADV_NORMAL;
    }
    [[nodiscard]] static result<mapped_file> map(int descriptor, const std::string& path) {
        struct ::stat about {};
        if (retry([&] { return ::fstat(descriptor, &about); }) < 0)
            return fail(errc::io, "cannot examine ", path, ": ", std::strerror(errno));
        if (S_ISDIR(about.st_mode)) return fail(errc::invalid_argument, path, " is a directory, not a file");
        if (!S_ISREG(about.st_mode)) return fail(errc::invalid_argument, path, " is not a regular file");
        if (about.st_size == 0) return fail(errc::malformed_file, path, " is empty");
        if (static_cast<std::uintmax_t>(about.st_size) > (std::numeric_limits<std::size_t>::max)())
            return fail(errc::out_of_memory, path, " is larger than the address space");
        const auto size = static_cast<std::size_t>(about.st_size);
        void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (address == MAP_FAILED) return fail(errc::io, "cannot map ", path, ": ", std::strerror(errno));
        mapped_file out;
        out.data_ = static_cast<const std::byte*>(address);
        out.size_ = size;
        return out;
    }
    void close() noexcept {
        if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
    }

    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// Gives back the pages of parts of mappings, one part after another, while others are still being read: `pages(part)`, as
/// reuse::source_unneeded wants it. A read brings in pages around its own (64 KiB on Linux), so that the pages of a part come
/// back while its neighbours are read: each part is given back a second time some parts later, the last ones by finish().
class FRUGAL_FLAGGED page_return {
public:
    void operator()(std::span<const std::byte> part) {
        mapped_file::advise(part, access::done);
        parts_.push_back(part);
        bytes_ += part.size();
        if (bytes_ >= most_bytes) finish();
    }
    void finish() {
        for (const auto& part : parts_) mapped_file::advise(part, access::done);
        parts_.clear();
        bytes_ = 0;
    }

private:
    static constexpr std::size_t most_bytes = std::size_t{4} << 20;

    std::vector<std::span<const std::byte>> parts_;
    std::size_t bytes_ = 0;
};

}  // namespace io

FRUGAL_NAMESPACE_END
