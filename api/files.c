/*
 * files.c - reads and writes rollout files and unpacks packs for libinvar.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/invar.h"
#include "engine/run/replay/pack.h"
#include "engine/sample/rollout/file/rollout_file.h"

#include "base/invar_banned.h"

#define LINES "rollout" /* name of lines in memory, in place of a path in messages */

/* ---- rollout files --------------------------------------------------------------------------- */

static invar_status format_rollout(char **out, uint64_t *bytes_out, const invar_rollout_file *data)
{
    size_t bytes;

    INVAR_TRY(invar_rollout_file_format(out, &bytes, &data->header, data->samples.items,
                                        data->samples.count));
    *bytes_out = bytes;
    return INVAR_OK;
}

int32_t invar_api_rollout_read(char **out, uint64_t *bytes_out, const char *path)
{
    INVAR_AUTO(invar_rollout_file_release) invar_rollout_file data = {0};

    *out = NULL;
    INVAR_TRY(invar_rollout_file_read(&data, path));
    return format_rollout(out, bytes_out, &data);
}

int32_t invar_api_rollout_format(char **out, uint64_t *bytes_out, const void *lines, uint64_t bytes)
{
    INVAR_AUTO(invar_rollout_file_release) invar_rollout_file data = {0};

    *out = NULL;
    INVAR_TRY(invar_rollout_file_parse(&data, LINES, lines, bytes));
    return format_rollout(out, bytes_out, &data);
}

int32_t invar_api_rollout_write(const char *path, const void *lines, uint64_t bytes)
{
    INVAR_AUTO(invar_rollout_file_release) invar_rollout_file data = {0};

    INVAR_TRY(invar_rollout_file_parse(&data, LINES, lines, bytes));
    return invar_rollout_file_write(path, &data.header, data.samples.items, data.samples.count);
}

/* ---- packs ----------------------------------------------------------------------------------- */

int32_t invar_api_pack_unpack(const char *path, const char *folder)
{
    invar_pack pack;

    INVAR_TRY(invar_pack_read(&pack, path, folder));
    invar_pack_release(&pack);
    return INVAR_OK;
}
