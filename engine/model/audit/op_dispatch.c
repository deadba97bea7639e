/*
 * op_dispatch.c - passes each op of a runner to its CUDA graph cache and its audit, if it has them.
 *
 * The cache may hold an op back; a download therefore flushes the cache first. The audit sees an op
 * before and after its launch, and none on a dry-run device, where no op runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/audit/audit.h"
#include "engine/model/graph/cuda_graph_cache.h"

#include "base/invar_banned.h"

invar_status invar_op_runner_run(invar_op_runner *runner, invar_op op, const void *args)
{
    if (runner->graph_cache)
        return invar_cuda_graph_cache_call(runner->graph_cache, runner, op, args);
    return invar_op_runner_run_now(runner, op, args);
}

invar_status invar_op_runner_download(invar_op_runner *runner, void *to, const void *from,
                                      size_t bytes)
{
    if (runner->graph_cache)
        INVAR_TRY(invar_cuda_graph_cache_flush(runner->graph_cache));
    return invar_device_download(&runner->dev, to, from, bytes);
}

invar_status invar_op_runner_run_now(invar_op_runner *runner, invar_op op, const void *args)
{
    INVAR_TRY(invar_op_runner_reserve(runner, op, args));
    if (runner->dev.backend->memory.dry_run)
        return INVAR_OK;
    INVAR_TRY(invar_audit_before(runner->audit, op, args));
    INVAR_TRY(invar_op_run(&runner->dev, op, args));
    return invar_audit_after(runner->audit, op, args, runner->layer);
}
