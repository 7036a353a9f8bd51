"""Kernels run in Triton's interpreter unless a GPU run says `TRITON_INTERPRET=0`.

Set here, before anything is collected: Triton reads it when it is first imported, which
transformers does too.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
