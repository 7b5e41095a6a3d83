// The part of the contract that is about the state of a run: optimizers and random number generators. The rules are those of
// bridge.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A torch::optim::Optimizer*, as tch holds it; borrowed.
typedef void* DdpOptimizer;

// ---- optimizer.cc: torch::optim::Optimizer
// The name of its class, a text that lives for ever.
int ddp_optimizer_name(DdpOptimizer optimizer, const char** out);
// Tells of each parameter, group after group, in the order in which they were added.
int ddp_optimizer_parameters(
    DdpOptimizer optimizer,
    void (*take)(void* context, size_t group, uintptr_t identity, const int64_t* sizes, size_t dims),
    void* context);
// Options of the groups and state of the parameters, in libtorch's own archive format, in pieces.
int ddp_optimizer_save(
    DdpOptimizer optimizer,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context);
// Replaces both. The optimizer must be of the same class, with as many parameters in each group.
int ddp_optimizer_load(DdpOptimizer optimizer, const uint8_t* data, size_t length);

// ---- random.cc: default generators; `cuda_index` -1 is the CPU's
int ddp_generator_state(
    int cuda_index,
    void (*take)(void* context, const uint8_t* data, size_t length),
    void* context);
int ddp_generator_set_state(int cuda_index, const uint8_t* data, size_t length);

#ifdef __cplusplus
}
#endif
