"""The version of the code, known without installed metadata: slots compare it with the driver's."""

VERSION = "0.1.0"
