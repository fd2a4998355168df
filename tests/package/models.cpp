// What a consumer of whole models writes: one header without kernels. The file is not there, which the library has to say.
#include <cstdio>

#include "frugal/model/compiled.hpp"

int main() {
    const auto model = frugal::model::compiled_model::load("/nonexistent.gguf");
    if (model) return 1;
    std::printf("%s\n", model.error().message.c_str());
    return 0;
}
