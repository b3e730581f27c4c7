"""Plugins that do something to their process, or that nobody can look at, and one that tells what
is left of it."""

from __future__ import annotations

PATCHES = """
import logging, os, signal, sys, warnings
from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.host import Host

IS_ENGINE = os.path.basename(sys.argv[0]) == "process.py"
NAME = {name!r}
os.environ["FAULT_" + NAME] = "here"
logging.getLogger().addHandler(logging.NullHandler())
logging.getLogger().handlers[-1].name = NAME
logging.getLogger("hookserve").disabled = True
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
warnings.filterwarnings("ignore", NAME)
warnings.simplefilter("ignore")

@hookimpl
def hf_config():
    pass
"""
PATCHES_HOST = """
Host.problems = lambda self: ["patched by " + NAME]
"""
PATCHERS = {
    "stays": PATCHES,
    "fails": PATCHES + PATCHES_HOST + "raise ValueError('broken')\n",
    "behind": PATCHES + PATCHES_HOST + "if IS_ENGINE: raise ValueError('broken')\n",
}
"""One that works, one that fails in the front, and one that fails in the engine alone."""

WITNESS = """
import logging, os, signal, threading, warnings
from starlette.responses import JSONResponse
from starlette.routing import Route
from hookserve.hookspecs import Endpoint, hookimpl
from hookserve.hookspecs.host import Host

def tell(request):
    return JSONResponse({
        "environ": sorted(name for name in os.environ if name.startswith("FAULT_")),
        "handlers": sorted(str(each.name) for each in logging.getLogger().handlers),
        "filters": sorted(str(each[1].pattern) for each in warnings.filters if each[1]),
        "silenced": ("ignore", None, Warning, None, 0) in warnings.filters,
        "disabled": logging.getLogger("hookserve").disabled,
        "SIGUSR1": str(signal.getsignal(signal.SIGUSR1)),
        "SIGTERM": str(signal.getsignal(signal.SIGTERM)),
        "problems": Host.problems.__module__,
        "threads": sorted(thread.name for thread in threading.enumerate()),
    })

class Routes:
    def routes(self):
        return [Route("/witness", tell)]

@hookimpl
def endpoint():
    return Endpoint("witness", Routes)
"""
THREADS = """
import threading
from hookserve.hookspecs import hookimpl

threading.Thread(target=threading.Event().wait, name="runaway").start()

@hookimpl
def process_started():
    threading.Thread(target=threading.Event().wait, name="late runaway").start()
"""
PROUD = """
from hookserve.hookspecs import hookimpl

class Proud:
    def _refuse(self, *args):
        raise RuntimeError("hands off")

    __eq__ = __bool__ = __len__ = __iter__ = __repr__ = _refuse
    __hash__ = None

    @hookimpl
    def hf_config(self):
        pass

    @hookimpl
    def before_step(self):
        pass

    @hookimpl
    def request_finished(self):
        pass

plugin = Proud()
"""
OTHERS = {
    **{f"patches_{name}": source.format(name=name) for name, source in PATCHERS.items()},
    "starts_threads": THREADS,
    "witness": WITNESS,
}
PROUD_IDENTITY = "proud-dist:hookserve:proud"
APART_IDENTITY = "apart-dist:hookserve:apart"
"""Starts threads as well, and is loaded where a model is computed alone."""
