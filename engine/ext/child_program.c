/*
 * child_program.c - plug-ins that are programs: their handshake, requests and restarts.
 *
 * A program that dies may be started again and gets the request again, if its files are unchanged
 * (max-restarts). One that fails in any other way is killed, and every later call fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "engine/ext/line_process.h"
#include "engine/ext/plugin_backend.h"
#include "engine/ext/plugin_command.h"

#include "base/invar_banned.h"

/* ---- handshake ------------------------------------------------------------------------------- */

invar_status invar_plugin_greet(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                invar_line_process *program, const char *name, uint32_t kinds)
{
    invar_json_text text = {0};
    const char *line;
    size_t bytes;
    invar_status status;

    invar_plugin_greet_write(&text, name, kinds);
    status = text.status;
    if (status == INVAR_OK)
        status = invar_line_process_exchange(&line, &bytes, program, text.data, text.bytes);
    if (status == INVAR_OK)
        status = invar_plugin_greet_read(title_out, kinds_out, name, line, bytes);
    if (status != INVAR_OK)
        invar_line_process_kill(program);
    invar_json_text_release(&text);
    return status;
}

/*
 * Starts the program. One that dies during the handshake is not restarted: its command, an import
 * or a file is wrong, and a second start would hide that.
 */
static invar_status open_program(invar_plugin_peer *peer, uint32_t *offered_out,
                                 const invar_plugin_options *options)
{
    static const char advice[] = "it had not greeted yet, and max-restarts does not apply before "
                                 "that: run the command by itself to see what is wrong";
    const char *command = options->spec;
    // show only the first two words of the command: others may be secrets
    size_t bytes = strcspn(command, " ");
    char quote[INVAR_TEXT_QUOTE_SIZE * 2], text[sizeof quote + 80];
    invar_line_process *program;
    invar_status status;

    INVAR_TRY(
        invar_line_process_open(&program, peer->name, command, options->timeout, options->log_fd));
    peer->self = program;
    status = invar_plugin_greet(peer->title, offered_out, program, peer->name, peer->kinds);
    if (status == INVAR_OK)
        return INVAR_OK;
    if (peer->max_restarts > 0 && invar_line_process_may_restart(program))
        status = invar_error_advise(status, status, advice);
    bytes += command[bytes] ? 1 + strcspn(command + bytes + 1, " ") : 0;
    invar_text_quote(quote, sizeof quote, command, bytes);
    (void)snprintf(text, sizeof text, "the program '%s' has to greet as docs/plugins.md says",
                   quote);
    return invar_error_advise(status, status, text);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * Returns true if a program that died may be restarted and get the same request. Not after the
 * first turn of a sample: the program may have kept state of earlier turns.
 */
static bool may_restart(const invar_plugin_peer *peer, const invar_plugin_call *call)
{
    for (size_t i = 0; call->turns && i < call->count; i++)
        if (call->turns[i].turn > 1)
            return false;
    return peer->restarts < peer->max_restarts && invar_line_process_may_restart(peer->self);
}

/* Restarts the program; fails if it is not the same program as at the start of the run. */
static invar_status restart_program(invar_plugin_peer *peer)
{
    char title[INVAR_PLUGIN_TITLE_SIZE];
    invar_digest hash = peer->hash;
    uint32_t offered = 0;
    bool hashed = false;

    invar_error_clear();
    peer->restarts++;
    if (!peer->identify_by_title)
        INVAR_TRY(invar_plugin_argv_hash(&hashed, &hash, peer->name,
                                         invar_line_process_command(peer->self)));
    INVAR_TRY(invar_line_process_restart(peer->self));
    INVAR_TRY(invar_plugin_greet(title, &offered, peer->self, peer->name, peer->kinds));
    if (strcmp(title, peer->title) == 0 && !(peer->kinds & ~offered) &&
        invar_digest_equal(&hash, &peer->hash))
        return INVAR_OK;
    invar_line_process_kill(peer->self);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "plug-in %s: it died, and its files have changed since it was started; start "
                      "the run again to use the new ones",
                      peer->name);
}

/* Sends the request in `text`; restarts a program that died. */
static invar_status exchange_line(const char **line_out, size_t *bytes_out, invar_plugin_peer *peer,
                                  const invar_plugin_call *call)
{
    const invar_json_text *text = &peer->text;
    char died[1024];
    invar_status status =
        invar_line_process_exchange(line_out, bytes_out, peer->self, text->data, text->bytes);

    while (status != INVAR_OK && may_restart(peer, call)) {
        status = restart_program(peer);
        if (status == INVAR_OK)
            status = invar_line_process_exchange(line_out, bytes_out, peer->self, text->data,
                                                 text->bytes);
    }
    if (status == INVAR_OK || peer->restarts == 0)
        return status;
    (void)snprintf(died, sizeof died, "%.1000s", invar_error_last()->message);
    return INVAR_FAIL(status, invar_error_last()->native,
                      "%s; it was started again %" PRId64 " times (max-restarts)", died,
                      peer->restarts);
}

static invar_status ask_program(invar_plugin_peer *peer, const invar_plugin_call *call)
{
    const char *line;
    size_t bytes;
    invar_status status;

    invar_json_text_reset(&peer->text);
    invar_plugin_call_write(&peer->text, call);
    INVAR_TRY(peer->text.status);
    INVAR_TRY(exchange_line(&line, &bytes, peer, call));
    invar_json_text_reset(&peer->text);
    invar_json_text_append(&peer->text, line, bytes);
    status = invar_plugin_call_read_text(call, &peer->text, true);
    if (status != INVAR_OK)
        invar_line_process_kill(peer->self);
    return status;
}

static void watch_program(invar_plugin_peer *peer, void (*waits)(void *payload), void *payload)
{
    invar_line_process_set_wait_callback(peer->self, waits, payload);
}

static void close_program(invar_plugin_peer *peer)
{
    invar_line_process_close(peer->self);
}

const invar_plugin_backend invar_child_program_backend = {open_program, ask_program, watch_program,
                                                          close_program};
