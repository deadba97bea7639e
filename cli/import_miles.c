/*
 * import_miles.c - invar import-miles: converts a launch script of Miles to a recipe.
 *
 * The recipe ends with a line "# sum DIGEST" over all bytes before it. An existing file is
 * overwritten only if this line matches, so a recipe that was edited since is never lost. Notes
 * about flags go to stderr; the exit code tells whether everything that affects bits was converted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/recipe/recipe.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/safe_text.h"
#include "engine/config/miles_import/miles_import.h"

#include "base/invar_banned.h"

static void print_notes(const invar_import *import, const char *path)
{
    for (int kind = 0; kind < INVAR_IMPORT_KINDS; kind++)
        for (int i = 0; i < import->count; i++) {
            const invar_import_note *n = &import->notes[i];
            if ((int)n->kind != kind)
                continue;
            if (n->file) {
                invar_safe_text_print(stderr, n->file);
                fprintf(stderr, ":%d: ", n->line);
            }
            fprintf(stderr, "%s: ", invar_import_title(n->kind));
            invar_safe_text_print(stderr, n->flag);
            fputs(": ", stderr);
            invar_safe_text_print(stderr, n->why);
            fputc('\n', stderr);
        }
    if (import->error[0]) {
        fputs("the recipe cannot be run as it is: ", stderr);
        invar_safe_text_print(stderr, import->error);
        fputc('\n', stderr);
    }
    fprintf(stderr, "%d keys", invar_import_keys(import));
    if (path) {
        fputs(" written to ", stderr);
        invar_safe_text_print(stderr, path);
    }
    fprintf(stderr, "; %s\n",
            invar_import_is_complete(import) ? "all that bits depend on is taken over"
                                             : "the run would be another one: see above");
}

#define SUM "# sum " /* prefix of the last line, which has the digest of all bytes before it */

/* Formats the last line of a file with this digest. */
static void format_sum(char out[sizeof SUM + INVAR_DIGEST_HEX_SIZE], const invar_digest *digest)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    (void)snprintf(out, sizeof SUM + INVAR_DIGEST_HEX_SIZE, SUM "%s\n", hex);
}

/* Fails if the recipe at `path` was edited after it was written. */
static invar_status check_untouched(const char *path)
{
    char sum[sizeof SUM + INVAR_DIGEST_HEX_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *text;
    size_t bytes, last = sizeof sum - 1;
    invar_digest digest;
    bool same = false;

    if (!path || !invar_path_exists(path))
        return INVAR_OK;
    if (invar_file_read(&text, &bytes, path, INVAR_RECIPE_MAX_BYTES) != INVAR_OK) {
        invar_error_clear(); // a device or an unreadable file; opening it reports the error
        return INVAR_OK;
    }
    if (bytes > last) {
        invar_hash_bytes(&digest, text, bytes - last);
        format_sum(sum, &digest);
        same = memcmp(text + bytes - last, sum, last) == 0;
    }
    same = same || bytes == 0;
    invar_free(text);
    if (same)
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: was edited since import-miles wrote it, and is not replaced; move it "
                      "away, or give another --out",
                      shown);
}

/* Appends the digest line to the file that is being written. */
static invar_status end_with_sum(const invar_output *out)
{
    char sum[sizeof SUM + INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    int64_t bytes;

    if (!out->temp_path[0]) // standard output or a device
        return INVAR_OK;
    if (fflush(out->stream) != 0)
        return INVAR_OK; // closing the file reports the error
    INVAR_TRY(invar_file_hash(&digest, &bytes, out->temp_path));
    format_sum(sum, &digest);
    fputs(sum, out->stream);
    return INVAR_OK;
}

static invar_status import_script(int *code_out, const char *script, const char *path)
{
    invar_output out;
    invar_import import;
    invar_status status;

    INVAR_TRY(invar_output_check(path ? path : "-", INVAR_IMPORT_MARK));
    INVAR_TRY(check_untouched(path));
    INVAR_TRY(invar_import_read(&import, script));
    status = invar_output_open(&out, path ? path : "-", INVAR_IMPORT_MARK);
    if (status == INVAR_OK) {
        invar_import_write(out.stream, &import);
        status = invar_output_close(&out, end_with_sum(&out));
    }
    if (status == INVAR_OK) {
        print_notes(&import, path);
        *code_out = invar_import_is_complete(&import) ? INVAR_EXIT_OK : INVAR_EXIT_DIFFERENT;
    }
    invar_import_release(&import);
    return status;
}

static const char *out_path;
static const invar_option options[] = {
    {"out", INVAR_OPTION_TEXT, &out_path, "FILE", "recipe to write (standard output)", 0, 0}, {0}};

static int cmd_import_miles(int argc, char **argv)
{
    int code = INVAR_EXIT_OK;
    invar_status status = import_script(&code, argv[0], out_path);

    (void)argc;
    return status == INVAR_OK ? code : invar_report_error();
}

const invar_cli_command invar_cmd_import_miles = {
    .name = "import-miles",
    .summary = "turn a launch script of Miles into a recipe",
    .run = cmd_import_miles,
    .about =
        "Turns a launch script of Miles into a recipe: the arrays NAME_ARGS=( ... ) and the words\n"
        "behind train.py. Nothing is executed. Files of source are read if they lie beside the\n"
        "script; variables of the environment count as not set.\n"
        "\n"
        "A recipe that --out wrote is replaced as long as nobody has edited it.\n"
        "\n"
        "What is not taken over is listed with its reason on standard error, and as comments in\n"
        "the recipe. docs/from-miles.md has more.\n"
        "\n"
        "Exit codes:\n"
        "  0    the recipe says all that the script says, as far as bits depend on it\n"
        "  1    something that bits depend on is not taken over, or a value or a flag is\n"
        "       unknown\n"
        "  2    the script cannot be read, or there is no python3\n"
        "  129  wrong arguments, or the script is not bash as it is read here\n",
    .options = options,
    .words = "SCRIPT",
    .min_words = 1,
    .max_words = 1,
    .arguments = "SCRIPT [--out FILE]"};
