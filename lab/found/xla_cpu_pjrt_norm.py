"""A row minus its mean is computed twice, and rounded differently: of three equal numbers it is 0 below the root, and not above it.

project: xla-cpu-pjrt
needs: jax, xla-cpu-pjrt
effect: a norm of equal numbers without eps is infinite in place of NaN
workaround: none, only judged by the backend jax
thread: none found
shown: 0.0.1
right: none
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

try:
    import xla_plugins.xla_cpu_pjrt as plugin

    [library] = Path(plugin.__path__[0]).glob("*.so")
    os.environ |= {"JAX_PLATFORMS": "plugin", "PJRT_NAMES_AND_LIBRARY_PATHS": f"plugin:{library}"}
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def norm(bits: jax.Array) -> jax.Array:
    x = jax.lax.bitcast_convert_type(bits, jnp.float16).reshape(-1, 3).astype(jnp.float32)
    x = x - jnp.sum(x, -1, keepdims=True) / 3
    y = x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) / 3)
    return jax.lax.bitcast_convert_type(y.astype(jnp.float16), jnp.uint16).reshape(-1)


print("xla-cpu-pjrt", version("xla-cpu-pjrt"), "under JAX", jax.__version__)
rows = np.full(3 * 64, -250, np.float16)
came = np.asarray(jax.jit(norm)(rows.view(np.uint16))).view(np.float16)[:3]
print("expected", [float("nan")] * 3)
print("came    ", came.tolist())
sys.exit(0 if not np.isnan(came).all() else 1)
