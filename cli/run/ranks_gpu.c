/*
 * ranks_gpu.c - tests the transport between the GPUs of several ranks. The transport is chosen and
 * opened as a run would do it, on a copy of the layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/ranks_gpu.h"

#include "engine/config/config.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

static invar_status try_transport(invar_doctor_gpu_ranks *out, invar_layout *layout,
                                  const invar_device *dev, invar_distributed_backend wanted)
{
    int64_t far;

    INVAR_TRY(invar_ranks_first_nonzero(&far, layout, "GPUs", invar_device_is_local(dev)));
    out->any = far != 0;
    INVAR_TRY(invar_layout_choose_transport(&out->transport, layout, dev, wanted));
    INVAR_TRY(invar_layout_open_transport(layout, dev, &out->transport));
    if (!layout->data.device_comm)
        return INVAR_OK;
    return invar_link_test_run_device(&out->trial, layout->world, layout->data.device_comm, dev,
                                      layout->timeout_s);
}

invar_status invar_doctor_gpu_ranks_test(invar_doctor_gpu_ranks *out, const invar_layout *layout,
                                         bool present, const invar_config *config)
{
    invar_distributed_backend wanted =
        config ? config->distributed_backend : INVAR_DISTRIBUTED_BACKEND_AUTO;
    invar_device dev = {.backend = invar_backend_cpu(), .ordinal = invar_ranks_local_rank(layout)};
    invar_layout own = *layout;
    invar_status status = INVAR_OK;

    *out = (invar_doctor_gpu_ranks){.any = false};
    if (present)
        INVAR_TRY(invar_backend_find(&dev.backend, INVAR_DEVICE_CUDA));
    status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = try_transport(out, &own, &dev, wanted);
    invar_layout_close_transport(&own, &dev);
    invar_device_close(&dev);
    return status;
}
