// The part of the bridge for replicas of a model within one process, as bridge.h. A device is the number of a GPU, or -1 for the CPU.
#pragma once

#include "bridge.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DdpThreadState DdpThreadState;
typedef struct DdpThreadEntered DdpThreadEntered;

// How often the tensor was written to.
int ddp_version(DdpTensor tensor, int64_t* out);
// Whether something that was computed from the tensor is still alive.
int ddp_in_a_graph(DdpTensor tensor, int* out);
// Makes each of `copies` (replica after replica, `count` each) a copy of its source on the replica's device. Where the source
// requires a gradient, backward adds the copies' gradients up into the source's. `changed` tells, for each copy, whether
// graphs that hold its old value are out of date.
int ddp_replicate(
    const DdpTensor* sources,
    size_t count,
    const int* devices,
    size_t replicas,
    const DdpTensor* copies,
    const uint8_t* changed);
// What libtorch keeps for this thread (gradient mode, autocast ..), for another one to take over.
int ddp_thread_state(DdpThreadState** out);
void ddp_thread_state_free(DdpThreadState* state);
// Until ddp_thread_leave() on the same thread, this thread has that state, and the device is its current one.
int ddp_thread_enter(const DdpThreadState* state, int device, DdpThreadEntered** out);
void ddp_thread_leave(DdpThreadEntered* entered);

#ifdef __cplusplus
}
#endif
