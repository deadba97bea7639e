/*
 * selfcheck_sums.c - the digests of the self-check, on the host, as `invar selfcheck --record`
 * prints them.
 *
 * The exit code is 1 if a line is not among the recorded ones. The program is linked without a test
 * library and without the engine, so that it runs as a cross build in an emulator, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "kernels-deterministic/selfcheck.h"

typedef struct selfcheck {
    invar_dtype storage;
    invar_numerics numerics;
    int different;
} selfcheck;

static invar_status add_line(void *payload, invar_op op, const char *what,
                             const invar_digest *digest)
{
    selfcheck *s = payload;
    const char *const *line = invar_selfcheck_golden;
    char hex[INVAR_DIGEST_HEX_SIZE], text[256];

    invar_digest_format(hex, digest);
    (void)snprintf(text, sizeof text, "%s %s %s %d %s %s", invar_dtype_name(s->storage),
                   invar_numerics_name(s->numerics), invar_op_name(op), invar_op_revision(op), hex,
                   what);
    puts(text);
    while (*line && strcmp(*line, text) != 0)
        line++;
    s->different += *line == NULL;
    return INVAR_OK;
}

static invar_status run(selfcheck *s)
{
    invar_device dev = {.backend = invar_backend_cpu(), .numerics = s->numerics};

    INVAR_TRY(invar_pool_new(&dev.pool, 1));
    INVAR_TRY(invar_device_open(&dev));
    INVAR_TRY(invar_device_arena(&dev.scratch, &dev, "selfcheck"));
    INVAR_TRY(invar_arena_plan_scratch(dev.scratch, invar_selfcheck_scratch(1)));
    INVAR_TRY(invar_arena_reserve(dev.scratch));
    INVAR_TRY(invar_selfcheck_run(&dev, s->storage, add_line, s));
    invar_arena_free(dev.scratch);
    invar_device_close(&dev);
    invar_pool_free(dev.pool);
    return INVAR_OK;
}

int main(void)
{
    selfcheck all[] = {{INVAR_DTYPE_F32, INVAR_NUMERICS_IEEE, 0},
                       {INVAR_DTYPE_BF16, INVAR_NUMERICS_IEEE, 0},
                       {INVAR_DTYPE_BF16, INVAR_NUMERICS_SM90, 0}};
    int different = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (run(&all[i]) != INVAR_OK) {
            fprintf(stderr, "selfcheck_sums: %s\n", invar_error_last()->message);
            return 2;
        }
        different += all[i].different;
    }
    return different > 0;
}
