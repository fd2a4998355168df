// fails HAS_DESTRUCTOR: frugal: buffer<T> holds trivially copyable elements only
#include <string>

#include "frugal/tensor/buffer.hpp"

#if defined(HAS_DESTRUCTOR)
frugal::buffer<std::string> held;
#else
frugal::buffer<float> held;
#endif
