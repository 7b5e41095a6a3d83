// The libtorch wheels ship no Gloo headers. ProcessGroupGloo.hpp only needs these names declared; nothing of
// Gloo is instantiated by the bridge, every symbol used lives in libtorch_cpu.
#pragma once
