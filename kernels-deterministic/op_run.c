/*
 * op_run.c - runs an op: lookup, argument checks, scratch memory, profiling.
 *
 * invar_op_run checks the arguments and the rounding mode of the thread before the backend's code
 * runs, and releases the scratch of the op afterwards, also if the op fails. The table of op traits
 * is built from ops.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/device.h"

#include <string.h>

#include "kernels-deterministic/check/check.h"
#include "kernels-deterministic/ops.h"
#include "kernels-deterministic/step/simd.h"

#include "base/invar_banned.h"

#define STEP 1
#define IEEE 0

typedef struct op_trait {
    const char *name;
    int revision;
    int uses_step;
    invar_status (*check)(const invar_device *dev, const void *args);
    size_t (*copy)(void *to, const void *args);
} op_trait;

#if defined __has_builtin
#if __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(object) __builtin_clear_padding(object)
#endif
#endif
#ifndef CLEAR_PADDING
#define CLEAR_PADDING(object) ((void)(object))
#endif

/* GCC 12 clears fields, not only padding, after an array of structs: these args are left alone. */
static bool holds_an_array(invar_op op)
{
    return op == INVAR_OP_LINEAR_FWD || op == INVAR_OP_LINEAR_DX || op == INVAR_OP_MOE_LINEAR_DX;
}

/* Calls each check with its real argument type, because function pointers must not be converted. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static invar_status check_##fn(const invar_device *dev, const void *args)                      \
    {                                                                                              \
        return invar_check_##fn(dev, INVAR_OP_##ID, args);                                         \
    }                                                                                              \
    static size_t copy_##fn(void *to, const void *args)                                            \
    {                                                                                              \
        invar_##fn##_args *copy = to;                                                              \
                                                                                                   \
        _Static_assert(sizeof *copy <= INVAR_OP_ARGS_MAX, name);                                   \
        *copy = *(const invar_##fn##_args *)args;                                                  \
        if (!holds_an_array(INVAR_OP_##ID))                                                        \
            CLEAR_PADDING(copy);                                                                   \
        return sizeof *copy;                                                                       \
    }                                                                                              \
    invar_status invar_##fn(const invar_device *dev, const invar_##fn##_args *args)                \
    {                                                                                              \
        return invar_op_run(dev, INVAR_OP_##ID, args);                                             \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

static const op_trait op_traits[INVAR_OP_COUNT] = {
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    [INVAR_OP_##ID] = {name, revision, numerics, check_##fn, copy_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
};

#define INVAR_CHOICES INVAR_CHOICES_WORDS
#define INVAR_CHOICE INVAR_CHOICE_WORD
#include "kernels-deterministic/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

const char *invar_numerics_name(invar_numerics numerics)
{
    return invar_choices_word(&invar_numerics_choices, (int)numerics);
}

const char *invar_op_name(invar_op op)
{
    return op >= 0 && op < INVAR_OP_COUNT ? op_traits[op].name : NULL;
}

int invar_op_revision(invar_op op)
{
    return op >= 0 && op < INVAR_OP_COUNT ? op_traits[op].revision : 0;
}

int invar_op_depends_on_numerics(invar_op op)
{
    return op >= 0 && op < INVAR_OP_COUNT && op_traits[op].uses_step;
}

static invar_status check_call(const invar_device *dev, invar_op op, const void *args)
{
    if (op < 0 || op >= INVAR_OP_COUNT)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "op %d does not exist", (int)op);
    if (dev->backend->abi != INVAR_BACKEND_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "backend %s has table version %d; expected %d",
                          dev->backend->name, dev->backend->abi, INVAR_BACKEND_ABI);
    if (!dev->backend->ops[op].run)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: not implemented by backend %s",
                          op_traits[op].name, dev->backend->name);
    if (dev->numerics < 0 || dev->numerics >= INVAR_NUMERICS_COUNT)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: numerics %d does not exist", op_traits[op].name,
                          (int)dev->numerics);
    INVAR_TRY(op_traits[op].check(dev, args));
    return invar_check_memory(op, args);
}

size_t invar_op_args_copy(void *to, invar_op op, const void *args)
{
    return op_traits[op].copy(to, args);
}

/* ---- devices --------------------------------------------------------------------------------- */

invar_status invar_backend_find(const invar_backend **out, invar_device_kind kind)
{
    *out = kind == INVAR_DEVICE_CUDA ? invar_backend_cuda() : invar_backend_cpu();
    return *out ? INVAR_OK : invar_backend_cuda_absent();
}

invar_status invar_device_open(invar_device *dev)
{
    return dev->backend->open ? dev->backend->open(dev) : INVAR_OK;
}

void invar_device_close(invar_device *dev)
{
    if (dev->backend && dev->backend->close)
        dev->backend->close(dev);
    dev->context = NULL;
}

static invar_status arena_alloc(void **out, void *payload, size_t bytes, const char *what)
{
    return invar_device_alloc(payload, out, bytes, what);
}

static void arena_free(void *payload, void *block)
{
    invar_device_free(payload, block);
}

invar_status invar_device_arena(invar_arena **out, const invar_device *dev, const char *name)
{
    invar_arena_allocator source = {arena_alloc, arena_free, (void *)(uintptr_t)dev};

    return invar_arena_new_from(out, name, &source);
}

/* ---- ops ------------------------------------------------------------------------------------- */

invar_status invar_op_workspace(size_t *out, const invar_device *dev, invar_op op, const void *args)
{
    INVAR_TRY(check_call(dev, op, args));
    *out = dev->backend->ops[op].workspace(dev, args);
    return INVAR_OK;
}

/* Takes the scratch of a call from the arena of the device; an op without scratch takes none. */
static invar_status take_scratch(void **out, size_t *mark_out, const invar_device *dev,
                                 const invar_op_profiler_call *call)
{
    if (call->bytes == 0)
        return INVAR_OK;
    if (!dev->scratch)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: needs %zu bytes of scratch; the device has none",
                          call->name, call->bytes);
    *mark_out = invar_arena_mark(dev->scratch);
    return invar_arena_push(out, dev->scratch, call->bytes, call->name);
}

invar_status invar_op_run(const invar_device *dev, invar_op op, const void *args)
{
    invar_op_profiler_call call = {.op = op, .args = args};
    void *workspace = NULL;
    invar_status status;
    size_t mark = 0;
    bool begun;

    INVAR_TRY(invar_op_workspace(&call.bytes, dev, op, args));
    // a library built with fast math may have changed the mode; pool threads inherit it
    if (!invar_rounding_is_default())
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "%s: this thread rounds otherwise than to nearest, or flushes subnormals; "
            "restore the floating-point environment",
            op_traits[op].name);
    call.name = op_traits[op].name;
    begun = invar_op_profiler_begin(dev, &call);
    status = take_scratch(&workspace, &mark, dev, &call);
    if (status == INVAR_OK)
        status = dev->backend->ops[op].run(dev, args, workspace);
    if (workspace)
        INVAR_CHECK(invar_arena_rewind(dev->scratch, mark) == INVAR_OK);
    return invar_op_profiler_end(dev, begun, status);
}
