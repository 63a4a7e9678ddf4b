// Threads that share the parts of custom ops for ONNX Runtime.
#pragma once

#include <cstddef>

namespace ort {

// Calls a function for all numbers below `count`, on up to so many threads; false if another session has them now.
bool share(long threads, size_t count, void (*function)(void *, size_t), void *data);

} // namespace ort
