"""Pictures that requests name by an address: fetched from hosts that were allowed, and from nowhere else."""

from .fetching import PictureFetcher

__all__ = ["PictureFetcher"]
