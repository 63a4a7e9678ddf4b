"""A shell's background job ignores Ctrl-C; the programs that tests start must not."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
