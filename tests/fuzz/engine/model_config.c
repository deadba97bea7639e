/*
 * model_config.c - fuzz target: config.json and generation_config.json on any bytes.
 *
 * The input is the first file, and after a NUL the second. It is rejected with a proper message, or
 * gives a spec that passes its check and is read back the same from the config.json written for it.
 * Setting another weight type in the first file keeps all its other keys and values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/files/hf/hf.h"
#include "engine/model/spec/spec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static void check_round_trip(const invar_model_spec *spec, const char *folder, const char *path)
{
    invar_model_spec reread;
    char *text, *second;
    size_t bytes, second_bytes;

    INVAR_CHECK(invar_model_spec_check(spec) == INVAR_OK);
    INVAR_CHECK(invar_model_spec_json(&text, &bytes, spec, "float32") == INVAR_OK);
    INVAR_CHECK(bytes == strlen(text));
    fuzz_write(path, text, bytes);
    INVAR_CHECK(invar_model_spec_read(&reread, folder, "") == INVAR_OK);
    INVAR_CHECK(reread.family == spec->family && reread.attention.window == spec->attention.window);
    INVAR_CHECK(memcmp(&reread.norm_eps, &spec->norm_eps, sizeof spec->norm_eps) == 0);
    INVAR_CHECK(memcmp(reread.experts.sparse, spec->experts.sparse, sizeof spec->experts.sparse) ==
                0);
    INVAR_CHECK(reread.n_eos == spec->n_eos);
    INVAR_CHECK(invar_model_spec_json(&second, &second_bytes, &reread, "float32") == INVAR_OK);
    INVAR_CHECK(bytes == second_bytes && memcmp(text, second, bytes) == 0);
    invar_free(text);
    invar_free(second);
}

/* Parses `text` and removes the keys of the weight type. */
static json_t *without_type(const char *text, size_t bytes)
{
    json_t *object;

    INVAR_CHECK(invar_json_parse(&object, "config.json", text, bytes) == INVAR_OK);
    (void)json_object_del(object, "dtype");
    (void)json_object_del(object, "torch_dtype");
    return object;
}

static void check_other_type(const uint8_t *data, size_t size)
{
    char *from, *to;
    size_t bytes;

    INVAR_CHECK(INVAR_ALLOC(from, size + 1, "a text") == INVAR_OK);
    memcpy(from, data, size);
    from[size] = '\0';
    if (invar_hf_config(&to, &bytes, from, size, INVAR_DTYPE_BF16) == INVAR_OK) {
        json_t *original = without_type(from, size), *converted = without_type(to, bytes);
        INVAR_CHECK(json_equal(original, converted));
        json_decref(original);
        json_decref(converted);
        invar_free(to);
    }
    invar_free(from);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[FUZZ_PATH_SIZE], config[FUZZ_PATH_SIZE], generation[FUZZ_PATH_SIZE];
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t first = nul ? (size_t)(nul - data) : size;
    invar_model_spec spec;
    invar_status status;

    check_other_type(data, first);
    fuzz_path(folder, "");
    fuzz_path(config, "config.json");
    fuzz_path(generation, "generation_config.json");
    fuzz_write(config, data, first);
    fuzz_write(generation, nul ? (const void *)(nul + 1) : "{}", nul ? size - first - 1 : 2);
    status = invar_model_spec_read(&spec, folder, "");
    if (status == INVAR_OK) {
        check_round_trip(&spec, folder, config);
    } else {
        fuzz_check_failure(status);
        INVAR_CHECK(strstr(invar_error_last()->message, "config.json: "));
    }
    return 0;
}
