"""TensorFlow's runtime between workers: how they meet, and why one of them cannot go on.

Each process has a server of TensorFlow's. That of worker 0 has its coordination service, too, which
waits for all at the start, misses a worker's heartbeats, and passes on errors. What this module
calls (`tensorflow.python.eager.context`) is not public; tests/multi_worker/test_ends.py has a test
for each way in which a worker can end.
"""

import contextlib
import ctypes
import re
import signal
import threading
from pathlib import Path

import tensorflow as tf

from towers import errors
from towers.multi_worker import cluster

from tensorflow.core.protobuf import tensorflow_server_pb2  # isort: skip
from tensorflow.python.eager import context as eager  # isort: skip

_HEARTBEAT_SECONDS = 10
_TASK = re.compile(r"/job:worker\S*/task:(\d+)")
_REPORTED = re.compile(r"\[worker (\d+) has ended\] (.*)")


def connect(members: cluster.Cluster, wait_seconds: float) -> None:
    """Starts TensorFlow's runtime, with a server at this worker's port, and waits for the others.

    Raises:
      WorkerError: TensorFlow has started already.
      GoneError: names who has not come within `wait_seconds`, or says that the port is taken.
    """
    context = eager.context()
    if context._context_handle is not None:
        raise errors.WorkerError(
            "TensorFlow has started before the workers have met: meet them before anything else "
            "that uses it, such as making a tensor or a model"
        )
    leader, count = "/job:worker/replica:0/task:0", len(members.addresses)
    config = eager.coordination_config_pb2
    context.configure_collective_ops(leader, device_filters=(f"/job:worker/task:{members.index}",))
    context.configure_coordination_service(
        "standalone",
        leader,
        cluster_register_timeout_in_ms=int(wait_seconds * 1000),
        heartbeat_timeout_in_ms=_HEARTBEAT_SECONDS * 1000,
        coordinated_jobs=[config.CoordinatedJob(name="worker", num_tasks=count)],
    )
    # Otherwise the last worker would be waited for an hour.
    context.coordination_service.cluster_register_with_barrier = True
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({"worker": list(members.addresses)}).as_cluster_def(),
        default_session_config=context.config,
        job_name="worker",
        task_index=members.index,
        protocol="grpc",
    )
    context.ensure_initialized()
    if failure := _enable_collectives(context, server.SerializeToString()):
        raise errors.GoneError(_why_not_met(failure, members, wait_seconds))
    context._collective_ops_server_def = server
    context._initialize_logical_devices()


def _enable_collectives(context, server: bytes) -> str:
    """What has failed in what `context.enable_collective_ops` calls; empty for nothing.

    That blocks Python until all have come. Here it is in a thread, so that signals end the process
    meanwhile, as they do by default: TensorFlow takes SIGTERM, and Python's own end would wait for
    the thread.
    """
    libraries = (Path(tf.__file__).parent.glob(f"libtensorflow_{x}.*") for x in ("framework", "cc"))
    framework, tensorflow = (ctypes.CDLL(str(next(files))) for files in libraries)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    get_pointer = ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    enable = ctypes.CFUNCTYPE(None, pointer, text, ctypes.c_size_t, pointer)(
        ("TFE_EnableCollectiveOps", tensorflow)
    )
    status = ctypes.CFUNCTYPE(pointer)(("TF_NewStatus", framework))()
    arguments = get_pointer(context._context_handle, None), server, len(server), status
    thread = threading.Thread(target=enable, args=arguments, daemon=True)
    thread.start()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    handlers = {n: handler for n, handler in handlers.items() if handler != signal.SIG_IGN}
    waited = 0
    while thread.is_alive():
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)
        thread.join(0.2)
        waited += 1
        if waited == 25:  # five seconds
            print("waiting for other workers", flush=True)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if not ctypes.CFUNCTYPE(ctypes.c_int, pointer)(("TF_GetCode", framework))(status):
        return ""
    message = ctypes.CFUNCTYPE(text, pointer)(("TF_Message", framework))(status)
    return message.decode(errors="replace")


def _why_not_met(failure: str, members: cluster.Cluster, wait_seconds: float) -> str:
    if "Could not start gRPC server" in failure:
        name = members.name(members.index)
        return f"{name} cannot listen on its port: another process does"
    _, _, late = failure.partition("timed out task names:")
    named = _TASK.findall((late or failure).partition("Additional GRPC")[0]) or ["0"]
    tasks = sorted(set(map(int, named)))
    if tasks[-1] >= len(members.addresses):
        return f"worker {tasks[-1]}, which worker 0 waits for, is not among the workers given here"
    names = " and ".join(map(members.name, tasks))
    return f"{names} did not connect within {wait_seconds:g} s"


def explain(error: tf.errors.OpError, members: cluster.Cluster) -> errors.WorkerError | None:
    """Which other worker's end has caused an error, and why that has ended; None if no other's."""
    if reported := _REPORTED.search(error.message):
        name = members.name(int(reported[1]))
        return errors.WorkerError(f"{name} has ended: {reported[2]}")
    others = [index for index in range(len(members.addresses)) if index != members.index]
    ends = {members.name(index): _health(index) for index in others}
    if gone := [f"{name} {end}" for name, end in ends.items() if end]:
        return errors.GoneError(" and ".join(gone))
    why = error.message.partition("Collective ops is aborted by: ")[2].split("\n")[0]
    lost = f"TensorFlow has lost the connection to other workers ({why})"
    return errors.GoneError(lost) if why else None


def _health(index: int) -> str | None:
    """What has become of a worker; None if it is alive."""
    task = f"/job:worker/replica:0/task:{index}"
    try:
        eager.context().check_collective_ops_peer_health(task, 2000)  # milliseconds
    except tf.errors.DeadlineExceededError:
        return "does not answer"
    except tf.errors.OpError:
        return "died without an error message"
    return None


def report(index: int, reason: str) -> None:
    """Tells the other workers why this one ends: for a reason that would recur."""
    text = f"[worker {index} has ended] {' '.join(reason.split())[:1000]}"
    with contextlib.suppress(tf.errors.OpError):  # they know of another one's end already
        if not index or _health(0) is None:  # else it would wait for worker 0 for ever
            eager.context().report_error_to_cluster(tf.errors.FAILED_PRECONDITION, text)
