/*
 * clip.h - clip factor of gradients from their norm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_CLIP_H
#define INVAR_KERNELS_MATH_CLIP_H

#include "kernels-deterministic/math/portable.h"

#define INVAR_CLIP_EPS 1e-6f /* 0x1.0c6f7ap-20 */

/* Returns the factor of grad.norm, 1 if max_norm is 0 (docs/arithmetic.md, section 7). */
INVAR_FN float invar_norm_clip(float norm, float max_norm)
{
    float clip = max_norm / (norm + INVAR_CLIP_EPS);

    return max_norm > 0.0f && clip < 1.0f ? clip : 1.0f;
}

#endif
