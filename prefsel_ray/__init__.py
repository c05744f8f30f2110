"""prefsel_ray: which personalisation method should I deploy?"""

__version__ = "0.1.0"
