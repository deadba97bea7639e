/*
 * live_report_server.h - serves the live report of a run on the loopback interface.
 *     /        the page, which polls the other two
 *     /state   {"entries": N, "over": false}
 *     /data    data of the page
 *
 * The server reads the ledger in short transactions and never writes. It accepts only GET, and only
 * requests whose header Host names the loopback, which protects against DNS rebinding by pages of
 * other sites.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_LIVE_REPORT_SERVER_H
#define INVAR_CLI_LEDGER_LIVE_REPORT_SERVER_H

#include <stdint.h>

#include "cli/ledger/locate.h"

typedef struct invar_live_report_server invar_live_report_server;

/*
 * Starts the server at 127.0.0.1. *port is its port; 0 means any free port, which replaces it. `at`
 * is borrowed and must outlive the server. Returns INVAR_E_UNSUPPORTED if this build has no HTTP
 * server, and INVAR_E_IO if the port cannot be opened.
 */
invar_status invar_live_report_server_open(invar_live_report_server **out, const invar_located *at,
                                           int64_t *port) INVAR_MUST_USE;
void invar_live_report_server_close(invar_live_report_server *browser);

#endif
