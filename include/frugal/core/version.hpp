#pragma once
/// The one place that carries the version; CMake parses it from here.
#define FRUGAL_VERSION_MAJOR 0
#define FRUGAL_VERSION_MINOR 1
#define FRUGAL_VERSION_PATCH 0
