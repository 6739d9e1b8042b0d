# SPDX-License-Identifier: Apache-2.0
"""The three ways in which programs share a GPU, each a context manager that gives programs their environment."""
import os
import shutil
import subprocess
import tempfile
import time


class Native:
    """No service between programs and driver."""

    name = "native"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def is_up(self):
        return True

    def environment(self):
        return dict(os.environ)


class NvidiaMps:
    """NVIDIA's control daemon with a folder of its own, for as long as the block lasts."""

    name = "NVIDIA MPS"

    @staticmethod
    def present():
        return shutil.which("nvidia-cuda-mps-control") is not None

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="mpsshim-nvidia-")
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment(), check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=self.environment(), check=False, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self):
        return dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=self.folder, CUDA_MPS_LOG_DIRECTORY=self.folder)


class Broker:
    """A broker in a folder of its own, for as long as the block lasts; its logs go to `log_dir`."""

    name = "forwarded"

    def __init__(self, tree, driver, log_dir):
        self.tree, self.driver, self.log_dir = tree, driver, log_dir

    def __enter__(self):
        self.pipe_dir = tempfile.mkdtemp(prefix="mpsshim-programs-")
        with open(self.log_dir / "broker.err", "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [str(self.tree / "bin" / "mpsbroker"), "-f", "--driver", self.driver, "--pipe-dir", self.pipe_dir,
                 "--log-dir", str(self.log_dir)], stdout=subprocess.DEVNULL, stderr=errors)
        deadline = time.monotonic() + 30
        while self._control("get_server_list").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the broker does not answer (driver {self.driver}): see {self.log_dir}/broker.err")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self._control("quit", "--now")
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.pipe_dir, ignore_errors=True)

    def is_up(self):
        # One that is about to end takes no commands any more.
        return self.process.poll() is None and self._control("get_server_list").returncode == 0

    def _control(self, *words):
        return subprocess.run([str(self.tree / "bin" / "mpsctl"), "--pipe-dir", self.pipe_dir, *words],
                              capture_output=True, text=True, check=False)

    def environment(self):
        return dict(os.environ, LD_PRELOAD=str(self.tree / "lib" / "libmpsshim.so"),
                    CUDA_MPS_PIPE_DIRECTORY=self.pipe_dir, MPSSHIM_REQUIRE="1")


class RunningBroker(Broker):
    """A broker that somebody else started and will stop, by its pipe directory."""

    def __init__(self, tree, pipe_dir):
        super().__init__(tree, None, None)
        self.pipe_dir = pipe_dir

    def __enter__(self):
        if not self.is_up():
            raise SystemExit(f"no broker answers in {self.pipe_dir}")
        return self

    def __exit__(self, *_):
        pass

    def is_up(self):
        return self._control("get_server_list").returncode == 0
