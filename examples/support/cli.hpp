#pragma once
/// What the example programs' command lines have in common. Programs end with 0, 1 (failed) or 2 (wrong use).
#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "generator.hpp"
#include "model_file.hpp"
#include "terminal.hpp"

namespace runner {

/// Parses the command line and runs the program; its exit status. Adds --version. Two-letter options of llama.cpp (-sys, -cnv)
/// stand for the long ones. Messages go to standard error.
[[nodiscard]] int run_program(CLI::App& app, int argc, char** argv, const std::function<frugal::status()>& run);

/// Ends the program with 2, from within its `run`.
[[noreturn]] void wrong_use(const std::string& message);

/// Checks of options: a whole number, or any finite one. The messages name the bounds.
inline constexpr std::int64_t any_whole_number = std::int64_t{1} << 40;
[[nodiscard]] CLI::Validator whole_number(std::int64_t least, std::int64_t most = any_whole_number);
[[nodiscard]] CLI::Validator number(double least, double most, bool above_least = false);

/// Options that every program with a model takes.
struct model_arguments {
    std::string model = "tiny-qwen35";
    std::size_t threads = 0;
    std::size_t context = 0;
    int qsa_ratio = -1;
    bool check_tensors = false, allow_paging = false, exact = false;

    void add_to(CLI::App& app, const std::string& context_names = "-c,--ctx-size",
                const std::string& context_help = "most tokens of a sequence; 0: what the model was trained for");
    [[nodiscard]] std::optional<std::size_t> ratio() const {
        return qsa_ratio < 0 ? std::nullopt : std::optional<std::size_t>(static_cast<std::size_t>(qsa_ratio));
    }
    /// Opens the model; a context beyond what it was trained for gets a warning.
    [[nodiscard]] frugal::result<model_file> open() const;
    [[nodiscard]] engine_options engine() const {
        engine_options out;
        out.max_tokens = context;
        out.qsa_ratio = ratio();
        out.check_tensors = check_tensors;
        out.exact = exact;
        return out;
    }
};

/// Options of every program that generates text.
struct generation_arguments {
    void add_to(CLI::App& app);
    /// What was asked for. Without --n-predict a reply of a chat ends by itself. A bias of a token that the model does not have
    /// is wrong use.
    [[nodiscard]] generation_options options(const model_arguments& model, const model_file& file, bool chat) const;

private:
    generation_options options_;
    std::optional<std::int64_t> predict_;
    std::vector<std::string> biases_;
};

/// Options of conversations.
struct chat_arguments {
    std::string system;
    std::optional<bool> think{};  ///< empty: as the file's template has it

    void add_to(CLI::App& app);
};

}  // namespace runner
