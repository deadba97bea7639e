/*
 * pack.c - fuzz target: packs with any recipe and any manifest, in a valid archive.
 *
 * The input is the recipe, and from the first '{' on the manifest. In the manifest '#' stands for
 * the size of the recipe and '@' for its hash; without this nearly every recipe would be rejected
 * for one of them. A pack is rejected as damaged or unsupported, or none of its paths leads out of
 * the folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/pack.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json/text.h"
#include "engine/files/tar.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

/* Writes the manifest with the size and the hash of the recipe filled in. */
static void expand_manifest(invar_json_text *out, const char *manifest, size_t size,
                            const char *recipe, size_t recipe_size)
{
    char count[24], hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest hash;

    invar_hash_bytes(&hash, recipe, recipe_size);
    invar_digest_format(hex, &hash);
    (void)snprintf(count, sizeof count, "%zu", recipe_size);
    for (size_t i = 0; i < size; i++) {
        const char *filled = manifest[i] == '#' ? count : manifest[i] == '@' ? hex : NULL;
        invar_json_text_append(out, filled ? filled : manifest + i, filled ? strlen(filled) : 1);
    }
    INVAR_CHECK(out->status == INVAR_OK);
}

static void write_pack(const char *path, const char *data, size_t size)
{
    const char *brace = size > 0 ? memchr(data, '{', size) : NULL;
    size_t recipe_size = brace ? (size_t)(brace - data) : size;
    invar_json_text manifest = {0};
    invar_tar_writer *tar;

    expand_manifest(&manifest, data + recipe_size, size - recipe_size, data, recipe_size);
    INVAR_CHECK(invar_tar_writer_open(&tar, path) == INVAR_OK);
    INVAR_CHECK(invar_tar_add(tar, "ledger.db", "x", 1) == INVAR_OK);
    INVAR_CHECK(invar_tar_add(tar, "recipe.ini", data, recipe_size) == INVAR_OK);
    INVAR_CHECK(invar_tar_add(tar, "manifest.json", manifest.data, manifest.bytes) == INVAR_OK);
    INVAR_CHECK(invar_tar_commit(tar) == INVAR_OK);
    invar_tar_writer_close(tar);
    invar_json_text_release(&manifest);
}

static void check_pack(const invar_pack *pack, const char *folder)
{
    size_t count, length = strlen(folder);
    const invar_key *paths = invar_recorded_keys_paths(&count);

    INVAR_CHECK(pack->step >= 0 && strlen(pack->uuid) == 32);
    INVAR_CHECK(strspn(pack->uuid, "0123456789abcdefABCDEF") == 32);
    INVAR_CHECK(strncmp(pack->ledger, folder, length) == 0);
    for (size_t i = 0; i < count; i++) {
        const char *value = invar_recorded_keys_get(&pack->keys, paths[i]);
        if (value[0] && strncmp(value, "task:", 5) != 0)
            INVAR_CHECK(strncmp(value, folder, length) == 0 && !strstr(value, ".."));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_SIZE], folder[FUZZ_PATH_SIZE];
    invar_status status;
    invar_pack pack;

    fuzz_path(path, "pack");
    fuzz_path(folder, "unpacked");
    write_pack(path, (const char *)data, size);
    INVAR_CHECK(invar_held_folder_make(folder) == INVAR_OK);
    status = invar_pack_read(&pack, path, folder);
    if (status == INVAR_OK) {
        check_pack(&pack, folder);
        invar_pack_release(&pack);
    } else {
        INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
        fuzz_check_failure(status);
    }
    INVAR_CHECK(invar_held_folder_remove(folder) == INVAR_OK);
    return 0;
}
