/*
 * unpack.c - unpacks a pack, verifies its members, and reads its keys.
 *
 * A pack is untrusted input: the manifest must list every other member in order, with its size and
 * hash, and a path in the recipe may not lead out of the folder. A defect is INVAR_E_CORRUPT; only
 * an unknown format of the pack is INVAR_E_UNSUPPORTED.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "engine/files/tar.h"
#include "engine/run/replay/pack.h"

#include "base/invar_banned.h"

#define MANIFEST_BYTES ((size_t)1 << 20)

static invar_status fail_pack_with(invar_status status, const char *path, const char *word,
                                   const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE], quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_path_show(shown, path);
    invar_text_quote(quoted, sizeof quoted, word, strlen(word));
    return INVAR_FAIL(status, 0, "%s: \"%s\" %s", shown, quoted, why);
}

static invar_status fail_pack(const char *path, const char *word, const char *why)
{
    return fail_pack_with(INVAR_E_CORRUPT, path, word, why);
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static invar_status check_member(const json_t *item, const invar_tar_member *member,
                                 const char *path)
{
    const char *name, *hex;
    invar_digest hash;
    int64_t bytes;

    INVAR_TRY(invar_json_string(&name, item, "name", INVAR_PACK_MANIFEST));
    INVAR_TRY(invar_json_int(&bytes, item, "bytes", INVAR_PACK_MANIFEST, 0, INVAR_TAR_MAX_BYTES));
    INVAR_TRY(invar_json_string(&hex, item, "xxh128", INVAR_PACK_MANIFEST));
    INVAR_TRY(invar_digest_read(&hash, hex));
    if (strcmp(name, member->name) != 0)
        return fail_pack(path, member->name, "is not what the manifest lists there");
    if (member->bytes != bytes || !invar_digest_equal(&member->hash, &hash))
        return fail_pack(path, name, "is damaged: its hash is not that of the manifest");
    return INVAR_OK;
}

/* Fails unless the manifest lists every other member, in the order of the archive. */
static invar_status check_members(const json_t *items, const invar_tar_list *list, const char *path)
{
    if (!json_is_array(items) || (int64_t)json_array_size(items) != list->count - 1)
        return fail_pack(path, INVAR_PACK_MANIFEST, "does not list the members of the pack");
    for (int64_t i = 0; i < list->count - 1; i++)
        INVAR_TRY(check_member(json_array_get(items, (size_t)i), &list->items[i], path));
    return INVAR_OK;
}

static invar_status read_head(invar_pack *out, const json_t *manifest, const char *path)
{
    const char *format, *uuid;
    invar_digest number;

    INVAR_TRY(invar_json_string(&format, manifest, "format", INVAR_PACK_MANIFEST));
    if (strcmp(format, INVAR_PACK_FORMAT) != 0)
        return fail_pack_with(INVAR_E_UNSUPPORTED, path, format,
                              "is a format that this program does not read");
    INVAR_TRY(invar_json_string(&uuid, manifest, "run", INVAR_PACK_MANIFEST));
    if (invar_digest_read(&number, uuid) != INVAR_OK)
        return fail_pack(path, uuid, "is not the uuid of a run");
    memcpy(out->uuid, uuid, sizeof out->uuid);
    return invar_json_int(&out->step, manifest, "step", INVAR_PACK_MANIFEST, 0, INT64_MAX);
}

/* Reports parse errors inside a pack as damage. */
static invar_status convert_to_corrupt(invar_status status, const char *path)
{
    invar_error why;
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (status != INVAR_E_INVALID && status != INVAR_E_NOTFOUND)
        return status;
    invar_error_take(&why);
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %.1000s", shown, why.message);
}

static invar_status check_manifest(invar_pack *out, const invar_tar_list *list, const char *path,
                                   const char *folder)
{
    char file[INVAR_PATH_SIZE];
    json_t *manifest = NULL;
    invar_status status;

    if (list->count == 0 || strcmp(list->items[list->count - 1].name, INVAR_PACK_MANIFEST) != 0)
        return fail_pack(path, INVAR_PACK_MANIFEST, "is not the last member: this is no pack");
    INVAR_TRY(invar_path_join(file, sizeof file, folder, INVAR_PACK_MANIFEST));
    status = invar_json_read(&manifest, file, MANIFEST_BYTES);
    if (status == INVAR_OK)
        status = read_head(out, manifest, path);
    if (status == INVAR_OK)
        status = check_members(json_object_get(manifest, "members"), list, path);
    json_decref(manifest);
    return convert_to_corrupt(status, path);
}

/* ---- the keys -------------------------------------------------------------------------------- */

static invar_status set_path(invar_pack *pack, invar_key key, const char *path, const char *folder)
{
    const char *value = invar_recorded_keys_get(&pack->keys, key);
    char file[INVAR_PATH_SIZE];

    if (!value[0] || (key == INVAR_KEY_PROMPT_DATA && strncmp(value, "task:", 5) == 0))
        return INVAR_OK;
    if (value[0] == '/' || strstr(value, ".."))
        return fail_pack(path, value, "is a path out of the pack");
    INVAR_TRY(invar_path_join(file, sizeof file, folder, value));
    return invar_recorded_keys_put(&pack->keys, key, file);
}

static invar_status read_keys(invar_pack *out, const char *path, const char *folder)
{
    char file[INVAR_PATH_SIZE];
    const invar_key *keys;
    size_t count;

    INVAR_TRY(invar_path_join(file, sizeof file, folder, INVAR_PACK_RECIPE));
    INVAR_TRY(invar_recorded_keys_load(&out->keys, file));
    keys = invar_recorded_keys_paths(&count);
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(set_path(out, keys[i], path, folder));
    INVAR_TRY(invar_path_join(file, sizeof file, folder, INVAR_PACK_CHECKPOINT));
    memcpy(out->keys.checkpoints, file, sizeof file);
    if (!invar_path_exists(file))
        out->keys.checkpoints[0] = '\0';
    return INVAR_OK;
}

invar_status invar_pack_read(invar_pack *out, const char *path, const char *folder)
{
    invar_tar_list list;
    invar_status status;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_tar_unpack(&list, path, folder));
    status = check_manifest(out, &list, path, folder);
    if (status == INVAR_OK && !invar_tar_find(&list, INVAR_PACK_RECIPE))
        status = fail_pack(path, INVAR_PACK_RECIPE, "is missing");
    if (status == INVAR_OK && !invar_tar_find(&list, INVAR_PACK_LEDGER))
        status = fail_pack(path, INVAR_PACK_LEDGER, "is missing");
    invar_tar_list_release(&list);
    if (status == INVAR_OK)
        status = convert_to_corrupt(read_keys(out, path, folder), path);
    if (status == INVAR_OK)
        status = invar_path_join(out->ledger, sizeof out->ledger, folder, INVAR_PACK_LEDGER);
    if (status != INVAR_OK)
        invar_pack_release(out);
    return status;
}

void invar_pack_release(invar_pack *pack)
{
    invar_recorded_keys_release(&pack->keys);
}
