"""Small programs, each of which looks at itself. Their output has no process ids or times."""

# ruff: noqa: E501

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv)",
    "main": """
import sys
m = sys.modules["__main__"]
print({k: repr(v) for k, v in vars(m).items() if k not in ("__builtins__", "__loader__")})
print(type(m.__loader__).__name__, m.__loader__.name, m.__loader__.path, m.__builtins__ is sys.modules["builtins"])
print(list(globals()))
""",
    "path": "import sys; print(sys.path, sys.path_hooks[0].__name__, [type(m).__name__ for m in sys.meta_path])",
    "interpreter": """
import sys
print(sys.flags, sys.warnoptions, sys.executable, sys._base_executable, sys.prefix, sys.exec_prefix, sys.base_prefix)
print(sys._xoptions, sys.dont_write_bytecode, sys.platlibdir, sys.implementation.cache_tag, sys.version)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
print(getattr(sys, "last_type", None), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
""",
    "process": """
import os
print(open("/proc/self/cmdline").read().split("\\0"), open("/proc/self/comm").read())
print(open("/proc/self/environ").read().split("\\0"))
print(os.path.realpath("/proc/self/exe"), os.getcwd(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())
print([line for line in open("/proc/self/status") if line.startswith(("Umask", "SigIgn", "SigBlk", "Threads", "NoNew"))])
""",
    "variables": """
import ctypes, os
print(list(os.environ.items()))
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"RANK"), getenv(b"ONLY_THE_SERVER"), getenv(b"FLOW_PAUSED"), os.getenv("PYTHONPATH"))
os.environ["MADE"] = "here"
os.system("echo $MADE $RANK; env | sort | sed -n /^_=/d\\;p")
""",
    "streams": """
import sys
for s in (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__):
    print(repr(s), s.encoding, s.errors, s.line_buffering, s.isatty(), s.fileno(), s.newlines, type(s.buffer).__name__)
print(sys.stdout.write_through, sys.stderr.write_through, sys.stdout.seekable(), repr(sys.stdin.read()))
""",
    "descriptors": """
import os
held = {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
print({n: path for n, path in held.items() if int(n) < 500})
print(open("/dev/null").fileno())
""",
    "signals": """
import signal
print({n.name: str(signal.getsignal(n)) for n in signal.Signals}, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.set_wakeup_fd(-1), signal.getitimer(signal.ITIMER_REAL), signal.alarm(0))
""",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)\n",
    "cause": """
class Own(Exception):
    pass

try:
    {}["key"]
except KeyError as error:
    raise Own("caused", 3) from error
""",
    "group": 'raise ExceptionGroup("several", [ValueError(1), TypeError(2)])',
    "syntax_error": "print(1)\nif True\n    pass\n",
    "exit_number": "import sys; print('x', end=''); sys.exit(41)",
    "exit_text": "import sys; sys.exit('no such file')",
    "exit_none": "raise SystemExit",
    "exit_large": "import sys; sys.exit(-1)",
    "exit_at_once": "import os; print('printed'); os._exit(7)",
    "exit_in_atexit": "import atexit, sys; atexit.register(lambda: print('last')); atexit.register(lambda: 1 / 0); sys.exit(3)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "crash": "import ctypes; print('before'); ctypes.string_at(0)",
    "interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "user_signal": "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)",
    "broken_pipe": """
import os
r, w = os.pipe()
os.close(r)
try:
    os.write(w, b"x")
except BrokenPipeError as error:
    print(error)
os.write(w, b"y")
""",
    "threads": """
import threading, time
def work():
    time.sleep(0.2)
    print("thread", threading.current_thread().name, threading.main_thread() is not threading.current_thread())
def fail():
    raise ValueError("in a thread")
threading.Thread(target=work).start()
t = threading.Thread(target=fail, name="failing"); t.start(); t.join()
print(threading.active_count(), threading.main_thread().name, threading.main_thread() is threading.current_thread())
""",
    "title": """
import ctypes
count, words = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(words))
environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
# Where setproctitle looks for the command line, and writes a title: before the environment.
length = sum(len(word.encode()) + 1 for word in words[: count.value])
place = environ[0] - length
print(words[: count.value], ctypes.string_at(place, length))
ctypes.memmove(place, b"title".ljust(length, b"\\0"), length)
print(open("/proc/self/cmdline").read().split("\\0")[0])
""",
    "main_thread": """
import threading
main = threading.main_thread()
print(main.native_id == threading.get_native_id(), main.ident == threading.get_ident())
""",
    "hooks": """
import sys, threading
sys.excepthook = lambda *a: print("hook", a[0].__name__, a[2].tb_lineno, a[2].tb_next, a[2].tb_frame.f_back)
class Bad:
    def __del__(self):
        raise RuntimeError("unraisable")
Bad()
raise LookupError
""",
    "frames": """
import inspect, sys, traceback, warnings
traceback.print_stack()
print(len(inspect.stack()), inspect.currentframe().f_back)
try:
    sys._getframe(1)
except ValueError as error:
    print(error)
warnings.warn("at the top", stacklevel=2)
warnings.warn("here")
depth = 0
def deeper():
    global depth
    depth += 1
    deeper()
try:
    deeper()
except RecursionError:
    print(depth)
""",
    "at_the_end": """
import atexit, sys, weakref
class Noisy:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("del", self.name, sys.is_finalizing() if sys else None)
one = Noisy("global")
cycle = Noisy("cycle"); cycle.me = cycle
weakref.finalize(one, print, "finalized")
atexit.register(print, "first registered")
atexit.register(print, "last registered")
file = open("left-open.txt", "w"); file.write("not flushed")
""",
    "read_left_open": "print(open('left-open.txt').read())",
    "buffering": """
import os, sys
print("one", end=" ")
os.write(1, b"two\\n")
sys.stderr.write("three ")
os.write(2, b"four\\n")
sys.stdout.buffer.write(b"\\xff raw\\n")
print("no newline", end="")
os._exit(0)
""",
    "closed_stdout": "import sys; print('a'); sys.stdout.close(); print('b')",
    "siblings": """
import sys, sibling, package.inner
print(sibling.NAME, sibling.__file__, package.inner.WHERE, sibling.__spec__.name, sys.modules["sibling"].__cached__ is None)
""",
    "fork": """
import multiprocessing, os
def work(q):
    q.put((__name__, multiprocessing.current_process().name, os.getppid() == parent))
if __name__ == "__main__":
    parent = os.getpid()
    context = multiprocessing.get_context("fork")
    q = context.Queue()
    p = context.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)
""",
    "spawn": """
import multiprocessing, os, sys
print("top", __name__, sys.argv)
class Own:
    pass
def work(q, own):
    q.put((__name__, type(own).__module__, __file__, sys.path[0], os.getcwd(), sys.executable, sys.argv, tuple(sys.flags)))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    q = context.Queue()
    p = context.Process(target=work, args=(q, Own())); p.start(); print(q.get()); p.join(); print(p.exitcode)
""",
    "forkserver": """
import multiprocessing, sys
def work(x):
    return __name__, x * x, sys.path[0]
if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.map(work, [3]))
""",
    "executor": """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
if __name__ == "__main__":
    with ThreadPoolExecutor(2) as pool:
        print(list(pool.map(abs, [-1, -2])))
    with ProcessPoolExecutor(1) as pool:
        print(pool.submit(divmod, 7, 2).result())
""",
    "exec_itself": """
import os, sys
if "again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
print(sys.argv, sys.path[0], sys.flags.unbuffered, open("/proc/self/cmdline").read().split("\\0")[1:])
sys.exit(5)
""",
    "child": """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "import sys, os; print(sys.path, os.environ['RANK'])"], capture_output=True))
print(subprocess.run("exit 3", shell=True).returncode)
""",
    "fault_handler": """
import faulthandler, sys
print(faulthandler.is_enabled())
faulthandler.enable(all_threads=False)
import os, signal
os.kill(os.getpid(), signal.SIGABRT)
""",
    "dump_later": "import faulthandler, time; faulthandler.dump_traceback_later(0.3, exit=True); time.sleep(20)",
    "logging": """
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(module)s %(processName)s %(message)s")
logging.info("told"); logging.getLogger("x").warning("warned")
record = logging.LogRecord("n", 20, "p", 1, "m", (), None)
print(logging.getLogger().handlers, -1 < record.relativeCreated < 20000)
""",
    "warnings": """
import warnings
print(warnings.filters)
warnings.warn("old", DeprecationWarning)
warnings.warn("resource", ResourceWarning)
warnings.warn("user")
open("/dev/null")
""",
    "random": """
import random, uuid, tempfile
random.seed(3)
print(random.random(), random.Random(4).random())
""",
    "pickle": """
import pickle
class Own:
    pass
def f(): pass
print(pickle.dumps(Own()), pickle.dumps(f), Own.__module__, f.__module__, pickle.loads(pickle.dumps(Own)) is Own)
""",
    "directory": "import os; print(sorted(os.listdir()), os.path.abspath('x'), __file__, os.path.dirname(os.path.abspath(__file__)))",
    "limits": """
import os, resource
kinds = [n for n in dir(resource) if n.startswith("RLIMIT_")]
print({n: resource.getrlimit(getattr(resource, n)) for n in kinds}, os.nice(0), os.sched_getaffinity(0), os.getgroups())
print(open("/proc/self/oom_score_adj").read(), open("/proc/self/cgroup").read())
""",
    "asynchronous": """
import asyncio
async def main():
    await asyncio.sleep(0.01)
    print(len(asyncio.all_tasks()))
    raise RuntimeError("in a coroutine")
asyncio.run(main())
""",
    "handlers": """
import os, signal, time
signal.signal(signal.SIGTERM, lambda n, f: print("got", n, f.f_code.co_name, f.f_back))
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGALRM, lambda n, f: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.2)
""",
    "garbage": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_debug(), gc.garbage)",
    "site": """
import site, sys
print(site.ENABLE_USER_SITE, site.getsitepackages(), sys.modules.get("sitecustomize"), sys.modules.get("usercustomize"))
print(quit, exit, type(help).__name__)
""",
    "locale": """
import locale, sys, time
print(locale.getlocale(), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getdefaultencoding(), time.tzname)
""",
    "reload": "import importlib, sibling; importlib.reload(sibling); import runpy; print(runpy.run_path('sibling.py')['NAME'])",
    "breakpoint": """
def g():
    inside = 41
    breakpoint()
    return inside
print("before"); g()
""",
    "tracers": """
import sys, threading
seen = []
def tracer(frame, event, argument):
    seen.append((event, frame.f_code.co_name, frame.f_lineno))
    return tracer
def work(x):
    y = x + 1
    return y
threading.setprofile(lambda frame, event, argument: seen.append(("profile", event, frame.f_code.co_name)))
sys.settrace(tracer); work(1); sys.settrace(None)
thread = threading.Thread(target=work, args=(2,)); thread.start(); thread.join()
print(seen)
""",
    "profiler": """
import cProfile, pstats
profile = cProfile.Profile()
print(profile.runcall(divmod, 7, 2), sorted(name for _, _, name in pstats.Stats(profile).stats))
""",
    "memory": """
import tracemalloc
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
tracemalloc.start(3)
kept = bytes(1000)
print(tracemalloc.get_object_traceback(kept))
""",
    "decimal": "import decimal, json; print(decimal.getcontext(), json.dumps({'a': decimal.Decimal(1).as_tuple()[1]}))",
    "deleted": "import os; os.unlink(__file__); 1 / 0",
}

FILES = {
    "sibling.py": "NAME = __name__\n",
    "package/__init__.py": "",
    "package/inner.py": "import os\n\nWHERE = os.path.basename(os.path.dirname(__file__))\n",
    "package/module.py": (
        "import sys\n\nfrom . import inner\n\nprint(sys.argv, sys.path, __name__, __package__, __spec__, inner.WHERE)\n"
        "print({k: v for k, v in vars(sys.modules['__main__']).items() if k not in ('__builtins__', '__loader__')})\n"
        "print(open('/proc/self/cmdline').read().split('\\0'))\n1 / 0\n"
    ),
    "package/__main__.py": "import sys\n\nprint(sys.argv, __name__, __spec__.name)\nsys.exit(4)\n",
}
