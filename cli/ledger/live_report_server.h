/*
 * live_report_server.h - a run in a browser while it happens: its report, served on this machine's
 * loopback.
 *
 *     /        the page; it asks for the other two
 *     /state   {"entries": N, "over": false}
 *     /data    the data of the page
 *
 * It reads the ledger, in short transactions, and writes nothing. It answers GET alone, and only
 * where the header Host names the loopback: a page of another site that has its name point here
 * (DNS rebinding) gets nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_LIVE_REPORT_SERVER_H
#define INVAR_CLI_LEDGER_LIVE_REPORT_SERVER_H

#include <stdint.h>

#include "cli/ledger/locate.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_live_report_server invar_live_report_server;

/*
 * Listens at 127.0.0.1, port 0: any that is free. `at` is borrowed for its path and uuid.
 * INVAR_E_UNSUPPORTED: there is no HTTP server; INVAR_E_IO: it cannot listen there.
 */
invar_status invar_live_report_server_open(invar_live_report_server **out, const invar_located *at,
                                           int64_t port) INVAR_MUST_USE;
int64_t invar_live_report_server_port(const invar_live_report_server *browser);
void invar_live_report_server_close(invar_live_report_server *browser);

#ifdef __cplusplus
}
#endif
#endif
