// The part of the bridge for mixed precision, as bridge.h.
#pragma once

#include "bridge.h"

#ifdef __cplusplus
extern "C" {
#endif

// Multiplies the gradients of `parameters` by `inverse_scale` in place. `gradients` is how many there are, `found_inf` whether
// one holds an infinity or a NaN.
int ddp_unscale_gradients(
    const DdpTensor* parameters, size_t count, float inverse_scale, size_t* gradients, int* found_inf);

#ifdef __cplusplus
}
#endif
